"""A journal as a shell script: git, and the commands that the system ran, for readers without this package.

The script makes a directory of its own and repeats there what was done, in order. A line that only prepares ends it with 3 where it fails.
Its end says ``LOST:`` or ``WRONG:`` if the system did what it is accused of (``script_end``). What a clause did in another way than by the
system's verbs, by git or by the people's methods is not in it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from pytest_gittrix.conformance.base.script_end import Accusation, asked_last, script_end
from pytest_gittrix.safe_text import printable, printable_line
from pytest_gittrix.testing.repos.history import Contents, Executable, Submodule, Symlink
from pytest_gittrix.testing.repos.journal import CommandRun, Journal, PersonCall, VerbCall

_OWN: Final = ("LD_PRELOAD", "FAKETIME", "NO_FAKE", "PYTEST_GITTRIX_CLOCK")
_LONGEST: Final = 20_000

_OR_STOP: Final = " || exit 3"

_HEAD: Final = """\
set -u
unset XDG_CONFIG_HOME GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
ROOT=$(mktemp -d) || exit 3; echo "everything is in $ROOT"
export HOME="$ROOT/home" GIT_CONFIG_GLOBAL="$ROOT/home/.gitconfig" GIT_CONFIG_NOSYSTEM=1; mkdir "$HOME" || exit 3
git config --global user.name Human && git config --global user.email human@example.com || exit 3
"""
_IMMUTABLE: Final = """\
trap 'chattr -R -i -a "$ROOT" 2>/dev/null' EXIT
"""
_NEWLINE: Final = """\
NEWLINE=$(printf '\\n.'); NEWLINE=${NEWLINE%.}
"""
_ELSEWHERE: Final = """\
elsewhere() { cd "$ROOT" && rm -rf rival && git clone -q -b "$1" durable rival && cd rival || exit 3; }
publish() { git push -q --force --receive-pack='git -c receive.denyCurrentBranch=ignore receive-pack' origin "HEAD:refs/heads/$1"; }
"""
_FIELD: Final = """\
field() { printf '%s\\n' "$ANSWER" | grep -o "\\"$1\\": *\\"[^\\"]*\\"" | head -n 1 | cut -d '"' -f 4 | grep .; }
"""
_ADD: Final = "git --literal-pathspecs add -A -f --"
_ASSIGNED: Final = re.compile(r"((?:COMMIT|SESSION|WORKSPACE)\d+)=\$\((?:field \w+|git rev-parse HEAD)\)(?: \|\| exit 3)?")
_STARTING: Final = ("start", "fork", "handoff", "succeed")
_CAPTURED: Final = (("id", "SESSION"), ("sessionId", "SESSION"), ("workspacePath", "WORKSPACE"))


def shell_script(journal: Journal, accused: Accusation | None = None) -> str:
    """What was done in a place, as a shell script.

    Args:
        journal: what was done.
        accused: what the end of the script looks for; nothing by default.
    """
    runs = [step for step in journal.steps if isinstance(step, CommandRun)]
    writer = _Writer({str(journal.root): "ROOT"} if journal.root.is_absolute() else {})
    writer.secret = frozenset(name for run in runs for name in run.secret)
    writer.program = next((run.program for run in runs if len(run.program) > 1), ())
    writer.accused, writer.asked = accused, asked_last(journal)
    exports = [*writer.exports(run for run in runs if run.program)]
    body = [*writer.opening(journal), *(line for step in _shown(journal) for line in writer.lines(step))]
    closing = ['cd "$ROOT/durable" || exit 3; git log --graph --oneline --all; git status --short']
    closing += script_end(journal, accused, writer.word) if accused is not None else []
    text = "\n".join(_without_unused([*body, *closing]))
    functions = (_FIELD if "$(field " in text else "") + (_ELSEWHERE if "elsewhere " in text else "")
    if writer.program:
        functions += f'program() {{ {writer.home}{" ".join(map(writer.word, writer.program))} "$@"; }}\n'
    scene = "".join(f"# {line}\n" for line in printable("\n".join(filter(None, (journal.scene, journal.beyond)))).splitlines())
    rest = functions + "".join(exports) + scene + text
    head = _HEAD + (_NEWLINE if '"$NEWLINE"' in rest else "") + (_IMMUTABLE if "chattr " in rest else "")
    setting = f"# {journal.setting}\n" if journal.setting else ""
    return "\n".join(["#!/bin/sh", setting + head + rest, ""])


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
        home: the home directory of the system's commands alone, as an assignment before them; empty if it is that of all others.
        directory: where the script is; empty if that depends.
        accused: what the end of the script looks for.
        asked: the command that was run last.
    """

    known: dict[str, str] = field(default_factory=dict)
    exported: Mapping[str, str] = field(default_factory=dict)
    secret: frozenset[str] = frozenset()
    program: tuple[str, ...] = ()
    home: str = ""
    directory: str = ""
    accused: Accusation | None = None
    asked: CommandRun | None = None

    def opening(self, journal: Journal) -> Iterator[str]:
        arguments = journal.opened_with
        branch = self.word(arguments.get("branch", "main"))
        yield f'git init -q -b {branch} "$ROOT/durable" && cd "$ROOT/durable"{_OR_STOP}'
        if "files" in arguments:
            yield from (f"{line}{_OR_STOP}" for line in self.edits(arguments["files"]))
        else:
            yield "# (the history of the repository that this was found in is not shown here)"
        yield f"git add -A -f && git commit -q --allow-empty -m 'Start the project'{_OR_STOP}"
        if arguments.get("bare"):
            yield f'cd "$ROOT" && git clone -q --bare durable bare && rm -rf durable && mv bare durable && cd durable{_OR_STOP}'

    def exports(self, runs: Iterable[CommandRun]) -> Iterator[str]:
        """The variables that all commands have in common."""
        found = [run.variables for run in runs]
        common = {name: value for name, value in (found[0] if found else {}).items() if all(one.get(name) == value for one in found)}
        self.exported = common
        wanted = {name: value for name, value in common.items() if not name.startswith(_OWN) and name != "HOME"}
        if "HOME" in common:  # git of the people has another one
            self.home = f"HOME={self.word(common['HOME'])} "
            yield f"mkdir -p {self.word(common['HOME'])}{_OR_STOP}\n"
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
        given = [self._assignment(name, value) for name, value in differing.items() if not name.startswith(_OWN)]
        words = run.command[len(self.program) :] if run.program == self.program else run.command
        named = ["program"] if self.program and run.program == self.program else []
        command = " ".join([*named, *map(self.word, words)])
        if given:  # an assignment before a function is not for its command in every shell
            command = f"(export {' '.join(given)}; {command})"
        fed = f"{printf_of(run.stdin)} | {command}" if run.stdin else command
        place = "" if run.directory == self.directory else f"cd {self.word(run.directory)}{_OR_STOP}; "
        self.directory = run.directory
        if run is self.asked and self.accused is not None:
            yield f"{place}ANSWER=$({fed}); S=$?; printf '%s\\n' \"$ANSWER\""
            return
        new = self._captured(run.answer) if run.ended in ("", "ok") else ()
        expected = _OR_STOP if run.ended == "ok" or not run.program else " && exit 3" if run.ended else ""
        if not new:
            yield f"{place}{fed}{expected}"
            return
        yield f"{place}ANSWER=$({fed}){expected}; printf '%s\\n' \"$ANSWER\""
        yield "; ".join(f"{variable}=$(field {key}){_OR_STOP}" for key, variable in new)

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
            done = [repository, f"{feed}git {' '.join(map(self.word, call.arguments))}"]
        elif call.method in ("dirty", "stage"):
            changes = call.arguments[0]
            staged = [f"{_ADD} {' '.join(map(self.word, changes))}"] if call.method == "stage" and changes else []
            done = [repository, *self.edits(changes), *staged]
        elif call.method == "rewind":
            branch = options.get("branch") or "main"
            done = [repository, f"git update-ref refs/heads/{self.word(branch)} {self.word(call.arguments[0])}"]
            done += ["git reset -q --hard"] if call.person == "durable" else []
        else:
            done = self._commit(call)
        yield " && ".join(done) + _OR_STOP
        if call.result:
            self._name(call.result, "COMMIT")
            yield f"{self.known[call.result]}=$(git rev-parse HEAD){_OR_STOP}"

    def _commit(self, call: PersonCall) -> list[str]:
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
            return [f"elsewhere {branch}", *edits, "git add -A -f", commit, f"publish {branch}"]
        # What was renamed is in the index already, and no path of it is left to add.
        adds = [f"{_ADD} {' '.join(paths)}"] if call.method == "commit" and paths else []
        return ['cd "$ROOT/durable"', *edits, *adds, f"{commit} -- {' '.join(paths)}"]


def _quoted(text: str) -> str:
    """A text as one word. Its newlines come from a variable, since a shell drops those at the end of what a command prints."""
    if "\n" in text:
        return '"$NEWLINE"'.join(_quoted(line) if line else "" for line in text.split("\n"))
    if text.isprintable() and not any("\ud800" <= char <= "\udfff" for char in text):
        return shlex.quote(text)
    return f'"$({printf_of(os.fsencode(text))})"'
