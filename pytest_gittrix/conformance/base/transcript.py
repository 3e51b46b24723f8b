"""A journal as a shell script: git, and the commands that the system ran, for readers without this package.

The script makes a directory of its own and repeats there what was done, in order. What a clause did in another way than by the system's
verbs, by git or by the people's methods is not in it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from pytest_gittrix.safe_text import printable, printable_line
from pytest_gittrix.testing.repos.history import Contents, Executable, Submodule, Symlink
from pytest_gittrix.testing.repos.journal import CommandRun, Journal, PersonCall, VerbCall

_OWN: Final = ("LD_PRELOAD", "FAKETIME", "NO_FAKE", "PYTEST_GITTRIX_CLOCK")
_LONGEST: Final = 20_000

_HEAD: Final = """\
set -u
unset XDG_CONFIG_HOME GIT_CONFIG_GLOBAL GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
ROOT=$(mktemp -d) || exit; echo "everything is in $ROOT"
export HOME="$ROOT/home" GIT_CONFIG_NOSYSTEM=1; mkdir "$HOME"
git config --global user.name Human; git config --global user.email human@example.com
"""
_NEWLINE: Final = """\
NEWLINE=$(printf '\\n.'); NEWLINE=${NEWLINE%.}
"""
_ELSEWHERE: Final = """\
elsewhere() { cd "$ROOT" && rm -rf rival && git clone -q -b "$1" durable rival && cd rival || exit; }
publish() { git push -q --force --receive-pack='git -c receive.denyCurrentBranch=ignore receive-pack' origin "HEAD:refs/heads/$1"; }
"""
_FIELD: Final = """\
field() { printf '%s\\n' "$ANSWER" | grep -o "\\"$1\\": *\\"[^\\"]*\\"" | head -n 1 | cut -d '"' -f 4; }
"""
_ADD: Final = "git --literal-pathspecs add -A -f --"
_ASSIGNED: Final = re.compile(r"((?:COMMIT|SESSION|WORKSPACE)\d+)=\$\((?:field \w+|git rev-parse HEAD)\)")
_STARTING: Final = ("start", "fork", "handoff", "succeed")
_CAPTURED: Final = (("id", "SESSION"), ("sessionId", "SESSION"), ("workspacePath", "WORKSPACE"))


def shell_script(journal: Journal) -> str:
    """What was done in a place, as a shell script."""
    runs = [step for step in journal.steps if isinstance(step, CommandRun)]
    writer = _Writer({str(journal.root): "ROOT"} if journal.root.is_absolute() else {})
    writer.secret = frozenset(name for run in runs for name in run.secret)
    writer.program = next((run.program for run in runs if len(run.program) > 1), ())
    exports = [*writer.exports(run for run in runs if run.program)]
    body = [*writer.opening(journal), *(line for step in _shown(journal) for line in writer.lines(step))]
    text = "\n".join(_without_unused(body))
    functions = (_FIELD if "$(field " in text else "") + (_ELSEWHERE if "elsewhere " in text else "")
    if writer.program:
        functions += f'program() {{ {" ".join(map(writer.word, writer.program))} "$@"; }}\n'
    scene = "".join(f"# {line}\n" for line in printable(journal.scene).splitlines())
    rest = functions + "".join(exports) + text + (f"\n{scene}".rstrip() if scene else "")
    closing = 'cd "$ROOT/durable"; git log --graph --oneline --all; git status --short'
    return "\n".join(["#!/bin/sh", _HEAD + (_NEWLINE if '"$NEWLINE"' in rest else "") + rest, closing, ""])


def _shown(journal: Journal) -> Iterator[VerbCall | PersonCall | CommandRun]:
    """The steps to show: calls of verbs only where no commands were run for them."""
    commands = any(isinstance(step, CommandRun) for step in journal.steps)
    return (step for step in journal.steps if not (commands and isinstance(step, VerbCall)))


def _without_unused(lines: Sequence[str]) -> Iterator[str]:
    """The lines without the variables that nothing else uses."""
    text = "\n".join(lines)
    for line in lines:
        parts = [part for part in line.split("; ") if not (name := _ASSIGNED.fullmatch(part)) or f"${name[1]}" in text]
        if parts:
            yield "; ".join(parts)


def printf_of(data: bytes) -> str:
    """A command that prints these bytes."""
    if len(data) > _LONGEST and len(set(data)) == 1:
        return f"head -c {len(data)} /dev/zero | tr '\\0' {_format(data[:1])}"
    return f"printf {_format(data)}"


def _format(data: bytes) -> str:
    escapes = {0x0A: "\\n", 0x25: "%%", 0x5C: "\\\\", 0x27: "'\\''"}
    return "'" + "".join(escapes.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in data) + "'"


@dataclass
class _Writer:
    """Writes steps as lines; knows which texts of this run are variables of the script.

    Attributes:
        known: the variable that holds a text, by the text.
        exported: the variables that every command has.
        secret: the variables whose values are not written; the script ends if its reader has not set them.
        program: the words that every command of the system begins with; the script calls them ``program``.
        directory: where the script is; empty if that depends.
    """

    known: dict[str, str] = field(default_factory=dict)
    exported: Mapping[str, str] = field(default_factory=dict)
    secret: frozenset[str] = frozenset()
    program: tuple[str, ...] = ()
    directory: str = ""

    def opening(self, journal: Journal) -> Iterator[str]:
        arguments = journal.opened_with
        branch = self.word(arguments.get("branch", "main"))
        yield f'git init -q -b {branch} "$ROOT/durable"; cd "$ROOT/durable"'
        if "files" in arguments:
            yield from self.edits(arguments["files"])
        else:
            yield "# (the history of the repository that this was found in is not shown here)"
        yield "git add -A -f; git commit -q --allow-empty -m 'First commit'"
        if arguments.get("bare"):
            yield 'cd "$ROOT"; git clone -q --bare durable bare; rm -rf durable; mv bare durable; cd durable'

    def exports(self, runs: Iterable[CommandRun]) -> Iterator[str]:
        """The variables that all commands have in common."""
        found = [run.variables for run in runs]
        common = {name: value for name, value in (found[0] if found else {}).items() if all(one.get(name) == value for one in found)}
        self.exported = common
        wanted = {name: value for name, value in common.items() if not name.startswith(_OWN) and name != "HOME"}
        if "HOME" in common:
            yield f'export HOME={self.word(common["HOME"])}; mkdir -p "$HOME"\n'
        if wanted:
            yield f"export {' '.join(self._assignment(name, value) for name, value in sorted(wanted.items()))}\n"

    def _assignment(self, name: str, value: str) -> str:
        return f'{name}="${{{name}:?}}"' if name in self.secret else f"{name}={self.word(value)}"

    def lines(self, step: VerbCall | PersonCall | CommandRun) -> Iterator[str]:
        if isinstance(step, PersonCall):
            return self._person(step)
        if isinstance(step, CommandRun):
            return self._command(step)
        return self._call(step)

    def _call(self, call: VerbCall) -> Iterator[str]:
        """A comment: the script cannot call the verbs of a system that has no commands."""
        error = call.error
        ended = f"raised {type(error).__name__} {getattr(error, 'code', '')}".rstrip() if error is not None else "returned"
        if call.verb in _STARTING and isinstance(call.answer, str):
            self._name(call.answer, "SESSION")
            ended = f"returned {self.known[call.answer]}"
        text = call.arguments
        for value in sorted(self.known, key=len, reverse=True):
            text = text.replace(repr(value), self.known[value]).replace(value, f"${self.known[value]}")
        yield f"# {printable_line(f'the system: {call.verb}({text}) {ended}')}"

    def _name(self, value: str, prefix: str) -> None:
        self.known.setdefault(value, f"{prefix}{sum(one.startswith(prefix) for one in self.known.values()) + 1}")

    def word(self, text: str) -> str:
        """A text as one word of the shell, with variables for what differs from run to run."""
        if not self.known:
            return _quoted(text)
        pattern = "|".join(re.escape(one) for one in sorted(self.known, key=len, reverse=True))
        parts = re.split(f"({pattern})", text)
        return "".join(f'"${self.known[part]}"' if part in self.known else _quoted(part) for part in parts if part) or "''"

    def edits(self, changes: Contents) -> Iterator[str]:
        """The commands that make changes of files in the current directory."""
        for path, content in changes.items():
            name, parent = self.word(path), str(PurePosixPath(path).parent)
            if content is None:
                yield f"rm -rf -- {name}"
                continue
            if parent != ".":
                yield f"mkdir -p -- {self.word(parent)}"
            if isinstance(content, Symlink):
                yield f"ln -sfn -- {self.word(os.fsdecode(content.target))} {name}"
            elif isinstance(content, Submodule):
                yield f"git update-index --add --cacheinfo 160000,{content.sha},{name}"
            elif isinstance(content, str | bytes | Executable):
                data = content.data if isinstance(content, Executable) else content
                yield f"{printf_of(data.encode() if isinstance(data, str) else data)} > {name}"
                if isinstance(content, Executable):
                    yield f"chmod +x -- {name}"

    def _command(self, run: CommandRun) -> Iterator[str]:
        differing = {name: value for name, value in run.variables.items() if self.exported.get(name) != value}
        prefix = "".join(f"{self._assignment(name, value)} " for name, value in differing.items() if not name.startswith(_OWN))
        words = run.command[len(self.program) :] if run.program == self.program else run.command
        named = ["program"] if self.program and run.program == self.program else []
        command = prefix + " ".join([*named, *map(self.word, words)])
        fed = f"{printf_of(run.stdin)} | {command}" if run.stdin else command
        place = "" if run.directory == self.directory else f"cd {self.word(run.directory)}; "
        self.directory = run.directory
        new = self._captured(run.answer)
        if not new:
            yield f"{place}{fed}"
            return
        yield f"{place}ANSWER=$({fed}); printf '%s\\n' \"$ANSWER\""
        yield "; ".join(f"{variable}=$(field {key})" for key, variable in new)

    def _captured(self, answer: Any) -> Sequence[tuple[str, str]]:
        found = []
        for key, prefix in _CAPTURED:
            value = answer.get(key) if isinstance(answer, dict) else None
            if isinstance(value, str) and value and value not in self.known:
                self._name(value, prefix)
                found.append((key, self.known[value]))
        return found

    def _person(self, call: PersonCall) -> Iterator[str]:
        options, repository = call.options, 'cd "$ROOT/durable"'
        self.directory = ""
        if call.method == "git":
            given = options.get("input")
            feed = f"{printf_of(os.fsencode(given))} | " if given is not None else ""
            yield f"{repository}; {feed}git {' '.join(map(self.word, call.arguments))}"
        elif call.method in ("dirty", "stage"):
            changes = call.arguments[0]
            staged = [f"{_ADD} {' '.join(map(self.word, changes))}"] if call.method == "stage" and changes else []
            yield "; ".join([repository, *self.edits(changes), *staged])
        elif call.method == "rewind":
            branch = options.get("branch") or "main"
            yield f"{repository}; git update-ref refs/heads/{self.word(branch)} {self.word(call.arguments[0])}"
            if call.person == "durable":
                yield "git reset -q --hard"
        else:
            yield from self._commit(call)
        if call.result:
            self._name(call.result, "COMMIT")
            yield f"{self.known[call.result]}=$(git rev-parse HEAD)"

    def _commit(self, call: PersonCall) -> Iterator[str]:
        options, branch = call.options, self.word(call.options.get("branch") or "main")
        worktree = options.get("worktree")
        elsewhere = not (call.person == "durable" if worktree is None else worktree) or "branch" in options
        if call.method == "rename":
            old, new = map(self.word, call.arguments[:2])
            edits, paths = [f"git mv -f -- {old} {new}"], [old, new]
            message = f"Rename {call.arguments[0]} to {call.arguments[1]}"
        else:
            changes = call.arguments[0]
            edits, paths = [*self.edits(changes)], [self.word(path) for path in changes]
            message = call.arguments[1] if len(call.arguments) > 1 else options.get("message") or f"Change {', '.join(changes)}"
        commit = f"git --literal-pathspecs commit -q --allow-empty -m {self.word(message)}"
        if elsewhere:
            yield "; ".join([f"elsewhere {branch}", *edits, "git add -A -f", commit, f"publish {branch}"])
        else:
            yield "; ".join(['cd "$ROOT/durable"', *edits, f"{_ADD} {' '.join(paths)}", f"{commit} -- {' '.join(paths)}"])


def _quoted(text: str) -> str:
    """A text as one word. Its newlines come from a variable, since a shell drops those at the end of what a command prints."""
    if "\n" in text:
        return '"$NEWLINE"'.join(_quoted(line) if line else "" for line in text.split("\n"))
    if text.isprintable() and not any("\ud800" <= char <= "\udfff" for char in text):
        return shlex.quote(text)
    return f'"$({printf_of(os.fsencode(text))})"'
