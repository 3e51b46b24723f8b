"""The world in which one cell of the profile runs: a home, a repository, perhaps a remote, and a record of every line that was run in it.

Everything that happens in a world is a line of shell, so that the record is also the script that reproduces a finding. What a tool leaves
is looked at with git and by reading files, never by asking the tool.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pytest_gittrix.conformance.base.shell_lines import MARK, RanLine, run_line, run_script
from pytest_gittrix.conformance.worktrees.base.description import WorktreeTool, fill
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.os_level.process_tree import ProcessTree
from pytest_gittrix.os_level.remove_tree import remove_tree
from pytest_gittrix.safe_text import printable
from pytest_gittrix.testing.systems.driver import NO_SEARCH, SearchBudget

_SETTINGS: Final = r'[user]\nname=me\nemail=me@localhost\n[init]\ndefaultBranch=main\n[protocol "file"]\nallow=always\n'
HOME_LINE: Final = (
    'unset XDG_CONFIG_HOME GIT_CONFIG_GLOBAL; export HOME="$R/home" GIT_CONFIG_NOSYSTEM=1; mkdir "$HOME"; '
    f"""printf '{_SETTINGS}' > "$HOME/.gitconfig\""""
)
"""What a script runs in place of the private home of a world."""
OUR_FILES: Final = ("before", "said", "pid", "was")
"""What the scripts keep next to the repository: the state before, what a command said, the number of a process, and the worktrees."""
_LISTED: Final = r'BEGIN { RS = ""; FS = "\n" } NR > 1 { print substr($1, 10) "\t" $2 $3 }'
TREES_LINE: Final = f"trees() {{ git worktree list --porcelain | awk '{_LISTED}' | sort; }}"
"""A function of the scripts that lists the linked worktrees as git does, one a line."""
_BRANCHES_FIRST: Final = r"""awk '/detached$/ { last = last $0 "\n"; next } 1; END { printf "%s", last }'"""
FRESH_LINE: Final = f'fresh() {{ trees | comm -13 "$R/was" - | {_BRANCHES_FIRST} | head -n 1 | cut -f 1; }}'
"""A function of the scripts that prints the directory of the worktree that was created since the worktrees were listed.

A pool may have made a spare one meanwhile, which is on no branch yet.
"""
ASKED: Final = "$(fresh)"
"""The directory of the worktree that was created since the worktrees were listed, as a script asks git for it."""
MOST_LINES: Final = 10
"""The length of a script."""
BASE_LINE: Final = (
    "git init -q app; cd app; printf '.env\\nbuild/\\n' > .gitignore; printf 'one\\ntwo\\nthree\\n' > file.txt; echo here > other.txt; "
    "git add .; git commit -qm base"
)
"""How the repository of a world is made."""
ORIGIN_LINE: Final = 'git clone -q --bare "$R/app" "$R/origin.git"; git remote add origin {url}; git push -q -u origin HEAD'
"""How the remote of a world is made."""
STATE: Final = "git status -uall --ignored; git rev-parse HEAD; git diff HEAD"
"""The state of a checkout, as git tells it: branch, operation in progress, index, files, and the text of changes."""
PRECIOUS: Final = "precious"
"""The prefix of the texts that mark work; see ``token``."""

_LOST: Final = "lost: "
_JUDGED: Final = re.compile(r"\|\| echo '(?:LOST|WRONG): ")
_PASSED: Final = ("PATH", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_NAMED: Final = re.compile(r"\b[0-9a-f]{7,64}\b")
_MOST_OUTPUT: Final = 1 << 20


class PromiseBroken(Exception):
    """The tool broke the promise.

    Args:
        what: what is lost or wrong.
        lost: whether work can no longer be found.
    """

    def __init__(self, what: str, *, lost: bool = False) -> None:
        super().__init__(what)
        self.lost = lost


class NoVerdict(Exception):
    """The scenario did not come about, so nothing can be said; the message says why."""


def token(what: str) -> str:
    """A unique text that marks a piece of work."""
    return f"{PRECIOUS}-{what}-work"


@dataclass
class ToolWorld:
    """A directory with a home and a repository in it, and the tool.

    Attributes:
        tool: the tool.
        root: the directory; ``$R`` in lines.
        place: the main checkout, below the root.
        lines: what was run, as lines of a script.
        note: what a report says of a promise that is kept, such as how much of it was tried.
        search: for how long a case searches for a crash or a race, beyond the moments that it always tries.
    """

    tool: WorktreeTool
    root: Path
    place: str = "app"
    lines: list[str] = field(default_factory=list)
    note: str = ""
    search: SearchBudget = NO_SEARCH
    _outputs: list[str] = field(default_factory=list)
    _paths: dict[str, Path] = field(default_factory=dict)
    _last: str = ""
    _again: Callable[[], AbstractContextManager[ToolWorld]] | None = None
    _mark: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def repo(self) -> Path:
        """The main checkout."""
        return self.root / self.place

    @property
    def base(self) -> str:
        """The base branch, quoted for the shell."""
        return shlex.quote(self.tool.base)

    @property
    def origin(self) -> Path:
        """The bare repository that is the remote, where there is one."""
        return self.root / "origin.git"

    def sh(self, line: str, at: Path | None = None) -> str:
        """Run a line of shell out of band, as a person or an agent would type it. Raises NoVerdict if it fails."""
        where = at or self.repo
        self.lines.append(f'{{ cd "{self._place(where)}" && {{ {self._written(line)}; }}; }} || exit 3')
        ran = self._run(line, where)
        if not ran.done:
            raise NoVerdict(f"the scenario could not be set up: `{line}` ended with {ran.status}: {ran.last_line}")
        return ran.output

    def look(self, line: str, at: Path | None = None) -> str:
        """What a line of shell prints, out of band; it is not part of the script."""
        return self._run(line, at or self.repo).output

    def command(self, command: str, name: str = "demo", *, said: bool = False) -> RanLine:
        """Run a command of the tool; with ``said`` a script has its output in ``$R/said`` and its exit status in ``$S``."""
        if command == "create":
            self.lines.append(f'cd "{self._place(self.repo)}" && trees > "$R/was" || exit 3')
        return self.typed(*self.prepared(command, name), said=said)

    def typed(self, line: str, where: Path, *, said: bool = False) -> RanLine:
        """Run a line of the tool's; ``said`` as in ``command``."""
        place, answers = self._place(where), self.tool.answers
        typed = f"script -qec {shlex.quote(line)} /dev/null" if self.tool.pty else line
        shown = f"({self._written(typed)})"
        # A script has the same standard input, wherever it is pasted.
        shown = f"printf '%s\\n' {shlex.join(answers)} | {shown}" if answers else f"{shown} </dev/null"
        if said:
            self.lines.append(f'cd "{place}" && {{ {shown}; }} > "$R/said" 2>&1; S=$?; cat "$R/said"; echo "exit status $S"')
        else:
            self.lines.append(f'cd "{place}"; {shown}; echo "exit status $?"')
        stdin = "".join(f"{answer}\n" for answer in answers)
        ran = self._run(typed, where, stdin=stdin, limit=self.tool.timeout, most=_MOST_OUTPUT)
        self._outputs.append(ran.output)
        if ran.status is None:
            raise NoVerdict(f"`{line}` did not end within {self.tool.timeout:g} seconds: {ran.last_line}")
        return ran

    def prepared(self, command: str, name: str = "demo") -> tuple[str, Path]:
        """The line of a command for a worktree, and the directory that it runs in."""
        path = self._paths.get(name)
        values = {"name": name, "base": self.tool.base, "repo": str(self.repo), "world": str(self.root)}
        if path is not None:
            values["path"] = str(path)
        where = self.tool.directory(command)
        places = {"repo": self.repo, "worktree": path or self.repo}
        return self.tool.line(command, values), places.get(where) or Path(fill(where, values, str))

    def environment(self) -> dict[str, str]:
        """The whole environment of everything that runs in the world."""
        environment = hermetic_env(self.root / "home", base={name: os.environ[name] for name in _PASSED if name in os.environ})
        del environment["GIT_OPTIONAL_LOCKS"], environment["GIT_TEMPLATE_DIR"]
        environment |= {"TERM": "dumb", "R": str(self.root), "W": self._last, MARK: self._mark}
        return environment | {name: value.replace("{world}", str(self.root)) for name, value in self.tool.env.items()}

    def _run(self, line: str, where: Path, *, stdin: str = "", limit: float = 60.0, most: int = -1) -> RanLine:
        return run_line(line, where if where.is_dir() else self.root, self.environment(), stdin=stdin, limit=limit, most=most)

    def _place(self, where: Path) -> str:
        return "$W" if str(where) == self._last else self._written(str(where))

    def _written(self, text: str) -> str:
        """A text as scripts have it: with the variables that hold the directories of worktrees, which no script knows by itself."""
        numbers = {str(path): number for number, path in enumerate(self._paths.values(), 1)}
        for path in sorted(numbers, key=len, reverse=True):
            text = text.replace(path, f"${{W{numbers[path]}}}")
        return self.portable(text)

    def portable(self, text: str) -> str:
        """A text with the world's directory as ``$R``; its name alone, of which a tool may make another path, as ``${R##*/}``."""
        return text.replace(str(self.root), "$R").replace(self.root.name, "${R##*/}")

    def create(self, name: str = "demo") -> Path:
        """Create a worktree with the tool, and give its directory. Raises NoVerdict if there is none afterwards."""
        before = self.worktrees()
        ran = self.command("create", name)
        path = self.found_new(before)
        if path is None:
            raise NoVerdict(f"`{ran.line}` ended with {ran.status} and made no worktree: {ran.last_line}")
        self.enter(name, path)
        return path

    def enter(self, name: str, path: Path, asked: str = ASKED) -> None:
        """Take a directory as the worktree of a name: it is ``{path}`` in commands, and ``$W`` in lines from now on.

        Args:
            name: the name.
            path: the directory.
            asked: how a script gets to know it, as text in double quotes; from git by default.
        """
        self._paths[name] = path
        self._last = str(path)
        number = [*self._paths].index(name) + 1
        self.lines[-1] += f'; cd "{self.portable(str(self.repo))}"; W="{asked}"; [ -n "$W" ] || exit 3; W{number}=$W'

    def path_of(self, name: str = "demo") -> Path:
        """The directory of a worktree that was created."""
        return self._paths[name]

    def worktrees(self) -> dict[Path, str]:
        """The linked worktrees that git lists, each with its HEAD and branch."""
        found: dict[Path, str] = {}
        for entry in self.look("git worktree list --porcelain").split("\n\n")[1:]:
            lines = entry.strip().splitlines()
            if lines and lines[0].startswith("worktree "):
                found[Path(lines[0].removeprefix("worktree "))] = "\n".join(lines[1:3])
        found.pop(self.repo, None)  # the checkout that is the main one may be linked to a bare repository
        return found

    def found_new(self, before: dict[Path, str]) -> Path | None:
        """The worktree that was not there before; of a pool the one whose HEAD changed. One on a branch comes before a spare one."""
        now = self.worktrees()
        fresh = [path for path in now if path.is_dir() and (path not in before or (self.tool.pool and before[path] != now[path]))]
        return min(fresh, key=lambda path: "branch " not in now[path], default=None)

    def branch_of(self, path: Path) -> str:
        """The branch that is checked out in a directory; empty for a detached HEAD."""
        return self.look("git symbolic-ref -q --short HEAD", path).strip()

    def gone(self, path: Path, head: str = "") -> bool:
        """Whether a worktree was removed; a pool gives it back, which shows by its HEAD."""
        if self.tool.pool and path.is_dir():
            return self.worktrees().get(path) != head
        return not path.is_dir()

    def probe(self) -> tuple[str, str]:
        """The branch and the directory that the tool gives the worktree ``demo``, tried in a world of its own."""
        assert self._again is not None
        with self._again() as other:
            path = other.create()
            return other.branch_of(path) or "demo", other.portable(str(path))

    def seen_from(self, place: str) -> ToolWorld:
        """The same world and record, with another repository as the main checkout; it is there, and commands of the tool run in it."""
        return replace(self, place=place)

    def check(self, test: str, what: str, *, lost: bool = False) -> None:
        """Judge with a line of shell, run in the main checkout: where it fails, the promise is broken, and ``what`` says how."""
        self.require(self._run(test, self.repo).done, what, test, lost=lost)

    def require(self, kept: bool, what: str, show: str, *, lost: bool = False) -> None:
        """Judge by what Python saw; ``show`` is the line of shell that fails in a script where the promise is broken."""
        if not kept:
            said = shlex.quote(f"{'LOST' if lost else 'WRONG'}: {what.removeprefix(_LOST)}")
            self.lines.append(f'cd "{self.portable(str(self.repo))}"; ( {self._written(show)} ) || echo {said}')
            raise PromiseBroken(what, lost=lost)

    def snapshot(self, where: Path) -> str:
        """The state of a checkout as git tells it; ``unchanged`` compares with it."""
        self.sh(f'{{ {STATE}; }} > "$R/before" 2>&1', where)
        return (self.root / "before").read_text(encoding="utf-8", errors="replace")

    def unchanged(self, where: Path, what: str) -> None:
        """Judge that a checkout is in the state of the last snapshot."""
        self.check(f'cd "{where}" && {{ {STATE}; }} 2>&1 | diff "$R/before" -', what)

    def findable(self, text: str, what: str) -> None:
        """Judge that a piece of work can still be found: on the disk, in a ref, a stash, an index, or in a commit that the output names."""
        if self.is_findable(text):
            return
        looked = f'grep -rs --exclude-dir=.git --exclude=before "{text}" "$R"'
        show = f'{{ git log --all -p -m; git stash list -p; {looked}; }} | grep -q "{text}"'
        self.require(False, what, show, lost=True)

    def is_findable(self, text: str) -> bool:
        """Whether a piece of work can still be found, as ``findable`` judges it."""
        return self.on_disk(text) or any(self._stores(place, text) for place in self._repositories())

    def on_disk(self, text: str) -> bool:
        """Whether a file of the world contains a text."""
        return any(text.encode() in _content(path) for path in self._files())

    def said(self, *words: str) -> bool:
        """Whether the tool's output names one of some words."""
        return any(word in output for output in self._outputs for word in words)

    def _files(self) -> Iterator[str]:
        for parent, directories, names in os.walk(self.root):
            if os.path.basename(parent) == "objects":
                directories[:] = []
            own = OUR_FILES if parent == str(self.root) else ()
            yield from (os.path.join(parent, name) for name in names if name not in own)

    def _repositories(self) -> Iterator[str]:
        for parent, directories, names in os.walk(self.root):
            if "HEAD" in names and {"objects", "refs"} <= {*directories}:
                yield parent

    def _stores(self, repository: str, text: str) -> bool:
        """Whether a text is in what git can reach in a repository, or in what hangs on commits that the tool's output names."""
        git = f'git --git-dir="{repository}"'
        named = " ".join(dict.fromkeys(found for output in self._outputs for found in _NAMED.findall(output)))
        roots = f'for id in {named}; do {git} rev-parse -q --verify "$id^{{commit}}"; done; {git} reflog show --format=%H refs/stash --'
        listed = f"{{ {roots}; }} 2>/dev/null | {git} rev-list --objects --no-object-names --all --indexed-objects --stdin 2>/dev/null"
        ran = self._run(f"{listed} | {git} cat-file --batch --buffer 2>/dev/null | grep -qaF {shlex.quote(text)}", self.repo)
        if ran.status not in (0, 1):
            raise NoVerdict(f"what git stores in {self.portable(repository)} could not be searched: {ran.last_line}")
        return ran.done

    @contextmanager
    def saved(self) -> Iterator[Callable[[], None]]:
        """Save the state of the world; the function that is given restores it."""
        first = f"{self.root}.first"
        shutil.copytree(self.root, first, symlinks=True)

        def restore() -> None:
            remove_tree(self.root)
            shutil.copytree(first, self.root, symlinks=True)

        try:
            yield restore
        finally:
            remove_tree(first)

    def script(self, title: str) -> str:
        """The record as a script, of at most ten lines: where it is longer, neighbouring lines are joined.

        Empty if the record does not end with a judgement: no script kills a program at a certain call.
        """
        if not self.lines or not _JUDGED.search(self.lines[-1]):
            return ""
        exported = "".join(f'export {name}="{_escaped(value)}"; ' for name, value in self.tool.env.items())
        lines = [line for line in self.lines if line]
        for number in range(1, len(self._paths) + 1):
            if not any(f"${{W{number}}}" in line for line in lines):
                lines = [line.replace(f"; W{number}=$W", "") for line in lines]
        functions = f"{TREES_LINE}; {FRESH_LINE}; " if any("trees" in line for line in lines) else ""
        head = [
            "#!/bin/sh",
            f"# {' '.join(printable(title).split())}",
            f'R=$(mktemp -d) || exit 3; export R W; cd "$R"; {exported}{HOME_LINE}',
            f"{functions}{BASE_LINE} || exit 3",
        ]
        while len(head) + len(lines) > MOST_LINES:
            first = min(range(len(lines) - 2), key=lambda at: len(lines[at]) + len(lines[at + 1]))
            lines[first : first + 2] = [f"{lines[first]}; {lines[first + 1]}"]
        return "\n".join([*head, *lines, ""])

    def replay(self, script: str) -> str:
        """Run a script in this directory, and give what it printed; its processes are ended, and the directory is removed.

        It is empty if the script stopped before its end.
        """
        try:
            ran = run_script(script, self.root, self.environment())
            return ran.output if ran.done else ""
        finally:
            self.close()

    def close(self) -> None:
        """End every process that was started in the world, and remove it."""
        ProcessTree(mark=self._mark, variable=MARK).end()
        remove_tree(self.root)


def _escaped(value: str) -> str:
    """A value escaped for double quotes in a script, with ``$R`` for the world."""
    return re.sub(r'(["\\$`])', r"\\\1", value).replace("{world}", "$R")


def _content(path: str) -> bytes:
    try:
        if os.path.islink(path) or not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def make_template(root: Path) -> None:
    """Make the world that the others are copies of."""
    root.mkdir(parents=True)
    world = ToolWorld(WorktreeTool(create="true"), root)
    world._run(BASE_LINE, root)


@contextmanager
def opened_world(tool: WorktreeTool, template: Path, scratch: Path, *, remote: bool = False) -> Iterator[ToolWorld]:
    """A fresh world for a tool, which is gone with all of its processes at the end.

    Args:
        tool: the tool.
        template: what ``make_template`` made.
        scratch: the directory to make the world in.
        remote: whether it needs a remote; a tool's description may ask for one in every world.
    """
    root = Path(tempfile.mkdtemp(prefix="w", dir=scratch)).resolve()
    shutil.copytree(template, root, symlinks=True, dirs_exist_ok=True)
    world = ToolWorld(tool, root, _again=lambda: opened_world(tool, template, scratch, remote=remote))
    try:
        world.look("git update-index -q --refresh")
        if tool.base != "main":
            world.sh(f"git branch -m {world.base}")
        if remote or tool.origin != "none":
            url = '"file://$R/origin.git"' if tool.origin == "file" else '"$R/origin.git"'
            world.sh(ORIGIN_LINE.format(url=url))
        for line in tool.setup:
            ran = world.typed(fill(line, {"repo": str(world.repo), "world": str(root), "base": tool.base}), world.repo)
            if not ran.done:
                raise NoVerdict(f"the setup `{line}` ended with {ran.status}: {ran.last_line}")
        if tool.main:
            main = Path(fill(tool.main, {"repo": str(world.repo), "world": str(root)}, str))
            if not main.is_dir() or not main.is_relative_to(root):
                raise NoVerdict(f"after the setup there is no main checkout at {world.portable(str(main))}")
            world.place = str(main.relative_to(root))
        if tool.setup and world.look("git rev-parse --is-inside-work-tree").strip() != "true":
            raise NoVerdict(
                f"after the setup there is no main checkout at {world.portable(str(world.repo))}; the key `main` says where it is"
            )
        yield world
    finally:
        world.close()
