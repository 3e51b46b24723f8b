"""TOML files that people write, validated by models: an error names the file, the line, the key, and what is allowed there."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pytest_gittrix.errors import InvalidInput, did_you_mean

Model = TypeVar("Model", bound=BaseModel)

PlainText = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""A text without NUL."""


def _known_version(value: int) -> int:
    if value != 1:
        raise ValueError(f"{value} is not 1, the version that is known")
    return value


Version1 = Annotated[int, Field(alias="schema"), AfterValidator(_known_version)]
"""The key ``schema`` of a file of which there is one version."""


class TomlTable(BaseModel):
    """Base of the models of tables: a key that is not known is an error, and no value is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def toml_text(text: str) -> str:
    """Write a text as TOML on one line."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_list(texts: Iterable[str]) -> str:
    """Write texts as a TOML list, each on a line of its own."""
    return "[\n" + "".join(f"  {toml_text(text)},\n" for text in texts) + "]"


def read_toml(file: Path, *, fix: str = "Give the path of a TOML file in UTF-8.") -> tuple[dict[str, Any], str]:
    """Read a file; gives its values and its text.

    Args:
        file: the file.
        fix: what to do if it cannot be read.

    Raises:
        InvalidInput: the file cannot be read, or is not TOML.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as problem:
        raise InvalidInput(f"{file} cannot be read: {problem.strerror}.", fix=fix) from None
    except UnicodeDecodeError as problem:
        raise InvalidInput(f"{file} is not UTF-8: {problem}.", fix=fix) from None
    try:
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as problem:  # tomllib lets Python refuse a number of thousands of digits
        raise InvalidInput(f"{file} is not TOML: {problem}.", fix="See https://toml.io for how it is written.") from None


def load_toml(file: Path, model: type[Model], *, fix: str = "Give the path of a TOML file in UTF-8.", context: Any = None) -> Model:
    """Read a file and validate it. Raises InvalidInput as ``read_toml`` and ``validated``."""
    values, text = read_toml(file, fix=fix)
    return validated(file, model, values, text=text, context=context)


def validated(
    file: Path, model: type[Model], values: Mapping[str, Any], *, text: str = "", table: Sequence[str] = (), context: Any = None
) -> Model:
    """Validate the values of a table.

    Args:
        file: the file that they are from.
        model: the model.
        values: the values.
        text: the file's text, in which the line of an error is looked for.
        table: the keys that lead to the table.
        context: pydantic's context, for the model's validators.

    Raises:
        InvalidInput: a key or a value is not allowed; each is listed.
    """
    try:
        return model.model_validate(values, context=context)
    except ValidationError as problem:
        errors = problem.errors(include_url=False)
    lines = [f"{key_of((*table, *error['loc']))}: {_reason(error, model)}" for error in errors]
    where = line_of(text, [*table, *map(str, errors[0]["loc"])])
    known = _known_keys(model, errors[0]["loc"][:-1])
    meant = did_you_mean(str(errors[0]["loc"][-1]), known) if errors[0]["type"] == "extra_forbidden" else ""
    given = f"The keys are: {', '.join(known)}. " if errors[0]["type"] == "missing" else ""
    raise InvalidInput(
        f"{file}{f', line {where}' if where else ''}: {lines[0]}",
        why="\n".join(lines[1:]),
        fix=f"{meant}{given}Nothing of the file is used until all of it is right.",
    )


def key_of(location: Sequence[int | str]) -> str:
    """A location in a file as it would be written: ``projects[0].durable``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".") or "the file"


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """The line of the last of some keys that a file has on one line only; None if there is none."""
    for key in reversed(keys):
        pattern = re.compile(rf"\s*\"?{re.escape(key)}\"?\s*=|.*[{{,]\s*{re.escape(key)}\s*=|\s*\[.*\b{re.escape(key)}\"?\]")
        found = [number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)]
        if len(found) == 1:
            return found[0]
    return None


def checked_by(check: Callable[[Any], Any], *, keep: bool = False) -> Callable[[Any], Any]:
    """A validator of pydantic, of a function that refuses a value with InvalidInput; ``keep`` gives the value back as it is."""

    def validate(value: Any) -> Any:
        try:
            found = check(value)
        except InvalidInput as problem:
            raise ValueError(f"{problem.fact} {problem.fix}") from None
        return value if keep else found

    return validate


def _reason(error: Any, model: type[BaseModel]) -> str:
    match error["type"]:
        case "extra_forbidden":
            known = _known_keys(model, error["loc"][:-1])
            return "no such key" + (f"; there are: {', '.join(known)}" if known else "")
        case "missing":
            return "must be given"
        case "value_error":
            return str(error["ctx"]["error"])
        case "model_type" | "dict_type":
            error["msg"] = "Input should be a table"
    given = error["input"] if isinstance(error["input"], str | int | float | bool | list) else type(error["input"]).__name__
    return f"{error['msg']}, not {given!r:.200}"


def _known_keys(model: Any, location: Sequence[int | str]) -> list[str]:
    """The keys that are allowed at a location."""
    chosen_by_file = False
    for part in location:
        if isinstance(part, int) or chosen_by_file:
            chosen_by_file = False
            continue
        if model is None or part not in model.model_fields:
            return []
        annotation = model.model_fields[part].annotation
        chosen_by_file, model = get_origin(annotation) is dict, _model_in(annotation)
    return sorted(field.alias or name for name, field in model.model_fields.items()) if model is not None and not chosen_by_file else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in ``list[Model]``, ``dict[str, Model]`` or ``Model | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
