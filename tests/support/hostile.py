"""What a hostile agent can plant in its workspace so that another person's git runs its programs or leaves its repository."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOOKS: Final = [
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
    "pre-commit",
    "pre-merge-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "pre-rebase",
    "post-checkout",
    "post-merge",
    "pre-push",
    "pre-receive",
    "update",
    "proc-receive",
    "post-receive",
    "post-update",
    "reference-transaction",
    "push-to-checkout",
    "pre-auto-gc",
    "post-rewrite",
    "sendemail-validate",
    "fsmonitor-watchman",
    "post-index-change",
]


@dataclass(frozen=True)
class Trap:
    """Where an agent plants things, and what shows that a program ran.

    Attributes:
        workspace: the agent's workspace, a ``clone``.
        git_dir: its own git directory.
        program: leaves the mark when it runs.
        mark: the file that must not appear.
        durable: the git directory the agent would like to reach.
    """

    workspace: Path
    program: Path
    mark: Path
    durable: Path

    @classmethod
    def set_in(cls, workspace: Path, outside: Path, durable: Path) -> Trap:
        """Write the program."""
        program, mark = outside / "program", outside / "mark"
        program.write_text(f"#!/bin/sh\necho \"$0 $*\" >> '{mark}'\n")
        program.chmod(0o755)
        return cls(workspace, program, mark, durable)

    @property
    def git_dir(self) -> Path:
        return self.workspace / ".git"

    def configure(self, *settings: str, file: str = "config") -> None:
        """Append settings, each ``section.name`` or ``section.sub.name``, with the program as the value unless ``=value`` follows."""
        with open(self.git_dir / file, "a") as config:
            for setting in settings:
                name, _, value = setting.partition("=")
                section, *sub, key = name.split(".")
                head = f'{section} "{".".join(sub)}"' if sub else section
                config.write(f"[{head}]\n\t{key} = {value or self.program}\n")

    def attributes(self, text: str, file: str = ".gitattributes") -> None:
        (self.workspace / file).parent.mkdir(exist_ok=True)
        (self.workspace / file).write_text(text)

    def hooks_in(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        for name in HOOKS:
            shutil.copy(self.program, directory / name)

    def replace(self, name: str, target: Path) -> None:
        """Put a link in the place of something in the git directory."""
        path = self.git_dir / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def filtered(self, file: str) -> None:
        self.configure("filter.x.clean", "filter.x.smudge", "filter.x.process", "filter.x.required=true")
        self.attributes("* filter=x\n", file)

    def instead_of_git_dir(self, pointer: str) -> None:
        shutil.rmtree(self.git_dir)
        self.git_dir.write_text(pointer)

    def write(self, name: str, text: str) -> None:
        (self.git_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (self.git_dir / name).write_text(text)


def _included(trap: Trap) -> None:
    trap.write("more", "")
    trap.configure("core.fsmonitor", "core.hooksPath", file="more")
    trap.configure(f"include.path={trap.git_dir / 'more'}")


def _conditionally_included(trap: Trap) -> None:
    trap.write("more", "")
    trap.configure("core.fsmonitor", file="more")
    with open(trap.git_dir / "config", "a") as config:
        config.write(f'[includeIf "gitdir:**"]\n\tpath = {trap.git_dir / "more"}\n')


def _hooks_by_path(trap: Trap) -> None:
    trap.hooks_in(trap.workspace / "hooks")
    trap.configure(f"core.hooksPath={trap.workspace / 'hooks'}")


def _submodule(trap: Trap) -> None:
    trap.attributes('[submodule "x"]\n\tpath = sub\n\turl = ext::sh -c date\n\tupdate = !touch mark\n', ".gitmodules")
    trap.configure("submodule.x.update=!" + str(trap.program), "submodule.x.active=true", "protocol.ext.allow=always")
    (trap.workspace / "sub").mkdir()
    shutil.copytree(trap.git_dir, trap.workspace / "sub" / ".git")


def _driver(trap: Trap) -> None:
    trap.configure("diff.x.command", "diff.x.textconv", "merge.x.driver")
    trap.attributes("* diff=x merge=x\n")


def _per_worktree(trap: Trap) -> None:
    trap.configure("extensions.worktreeConfig=true")
    trap.write("config.worktree", "")
    trap.configure("core.fsmonitor", file="config.worktree")


def _attributes_elsewhere(trap: Trap) -> None:
    trap.filtered("attributes")
    trap.configure(f"core.attributesFile={trap.workspace / 'attributes'}")


def _linked_git_dir(trap: Trap) -> None:
    shutil.rmtree(trap.git_dir)
    trap.git_dir.symlink_to(trap.durable)


VECTORS: Final[Mapping[str, Callable[[Trap], object]]] = {
    "core.fsmonitor": lambda trap: trap.configure("core.fsmonitor"),
    "core.hooksPath": _hooks_by_path,
    "hooks": lambda trap: trap.hooks_in(trap.git_dir / "hooks"),
    "filters by .gitattributes": lambda trap: trap.filtered(".gitattributes"),
    "filters by info/attributes": lambda trap: trap.filtered(".git/info/attributes"),
    "diff.external": lambda trap: trap.configure("diff.external"),
    "diff and merge drivers": _driver,
    "editors": lambda trap: trap.configure("core.editor", "sequence.editor"),
    "core.sshCommand": lambda trap: trap.configure("core.sshCommand", "remote.origin.url=ssh://localhost/x"),
    "pagers": lambda trap: trap.configure("core.pager", "pager.diff", "pager.log", "interactive.diffFilter"),
    "aliases": lambda trap: trap.configure(*(f"alias.{name}=!{trap.program}" for name in ("status", "commit", "hash-object", "log"))),
    "signing": lambda trap: trap.configure("gpg.program", "gpg.ssh.program", "commit.gpgSign=true", "tag.gpgSign=true"),
    "credential.helper": lambda trap: trap.configure("credential.helper", "core.askPass"),
    "include.path": _included,
    "includeIf": _conditionally_included,
    "a submodule": _submodule,
    "ext remote": lambda trap: trap.configure(f"remote.origin.url=ext::{trap.program}", "protocol.ext.allow=always"),
    "core.alternateRefsCommand": lambda trap: trap.configure("core.alternateRefsCommand", "uploadpack.packObjectsHook"),
    "config.worktree": _per_worktree,
    "core.worktree": lambda trap: trap.configure(f"core.worktree={trap.durable.parent}"),
    "core.attributesFile": _attributes_elsewhere,
    "gitdir: durable": lambda trap: trap.instead_of_git_dir(f"gitdir: {trap.durable}\n"),
    "no .git": lambda trap: shutil.rmtree(trap.git_dir),
    ".git is a link": _linked_git_dir,
    "commondir": lambda trap: trap.write("commondir", f"{trap.durable}\n"),
    "alternates": lambda trap: trap.write("objects/info/alternates", f"{trap.durable / 'objects'}\n"),
    "objects is a link": lambda trap: trap.replace("objects", trap.durable / "objects"),
    "refs is a link": lambda trap: trap.replace("refs", trap.durable / "refs"),
    "HEAD is a link": lambda trap: trap.replace("HEAD", trap.durable / "HEAD"),
    "index is a link": lambda trap: trap.replace("index", trap.durable / "index"),
    "config is a link": lambda trap: trap.replace("config", trap.durable / "config"),
    "packed-refs is a link": lambda trap: trap.replace("packed-refs", trap.durable / "packed-refs"),
    "the branch is a link": lambda trap: trap.replace("refs/heads/main", trap.durable / "packed-refs"),
    "HEAD leads out": lambda trap: trap.write("HEAD", "ref: refs/heads/../../../../../../durable/.git/refs/heads/main\n"),
    "HEAD is nothing": lambda trap: trap.write("HEAD", "\0\xff" * 300),
    "the index is nothing": lambda trap: trap.write("index", "DIRC" + "\0" * 100),
    "grafts": lambda trap: trap.write("info/grafts", "0" * 40 + " " + "1" * 40 + "\n"),
    "replace refs": lambda trap: trap.write(f"refs/replace/{'1' * 40}", "2" * 40 + "\n"),
}
