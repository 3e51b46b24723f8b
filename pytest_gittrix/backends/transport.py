"""Git over a wire: one address, the programs that talk to it, and what they said, in typed errors.

Whatever git takes for an address goes (``file://``, ``http(s)://``, ``ssh://``, ``git://``), but not a command to run
(``ext::``). Nothing of the person who runs the engine is seen: no configuration, no credential helper, no prompt. A program that
takes too long is ended with everything it started. It must not know what is fetched or pushed, nor where to.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import quote, unquote, urlsplit

from pytest_gittrix.errors import AdapterUnavailable, AuthFailed, GittrixError, InvalidInput
from pytest_gittrix.git.environment import git_binary, git_version, hermetic_env

Outcome = Literal["landed", "rejected", "refused", "unknown"]
"""How a push ended: the branch moved; the remote said no; it never came to the branch; nobody here can tell."""

FETCH: Final = ("fetch", "-q", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance", "--force")
"""How everything is fetched here."""
PUSH: Final = ("push", "--porcelain", "--no-verify", "--no-signed", "--no-follow-tags", "--recurse-submodules=no")
"""How everything is pushed; ``pushed`` reads what it says."""
# A git at the other end reads this too, where that is on this machine: the hooks of the remote are its own and run.
SETTINGS: Final = """\
[user]
	name = gittrix
	email = gittrix@localhost
[credential]
	helper =
[gc]
	auto = 0
	autoDetach = false
[maintenance]
	auto = false
[receive]
	autogc = false
[push]
	gpgSign = false
"""
"""The configuration of a git that talks to a remote, as text."""

_SCHEMES: Final = ("file", "http", "https", "ssh", "git")
_SCP: Final = re.compile(r"[\w.~-]+@[\w.-]+:(?!/?/)[^:]+|[\w.-]+\.[\w.-]+:(?!/?/)[^:]+")
_ADDRESS: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_WORDS: Final = 2000
_HIDDEN: Final = "***"
_UNPRINTABLE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")

_AUTH: Final = re.compile(
    r"authentication failed|could not read (?:username|password)|terminal prompts disabled|permission denied \(|"
    r"returned error: 40[13]\b|rpc failed; http 40[13]\b|invalid username or",
    re.IGNORECASE,
)
# The server's status says that it did not take the commit; nothing of the commit was sent yet; it was.
_NOT_TAKEN: Final = re.compile(r"rpc failed; http 4\d\d\b", re.IGNORECASE)
_UNSENT: Final = re.compile(r"unable to access", re.IGNORECASE)
_SENT: Final = re.compile(r"rpc failed|hung up|unexpected disconnect|early eof", re.IGNORECASE)
_LOCKED: Final = re.compile(r"\.lock'?: File exists", re.IGNORECASE)
_REASON: Final = re.compile(r"\((.*)\)$")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a git program came to.

    Attributes:
        status: its exit status; None if it took too long and was ended.
        out: its standard output.
        words: its standard error, without secrets and control characters.
    """

    status: int | None
    out: str
    words: str

    @property
    def remote(self) -> str:
        """What the other side said, as one line; empty if it said nothing."""
        said = (line.strip().removeprefix("remote:").strip() for line in self.words.splitlines() if line.startswith("remote:"))
        return "; ".join(line for line in said if line)[:_WORDS]

    @property
    def told(self) -> str:
        """What the other side said, or else what git said, as one line."""
        return self.remote or "; ".join(line.strip() for line in self.words.splitlines() if line.strip())[:_WORDS]


@dataclass(frozen=True, slots=True)
class Pushed:
    """How a push of one branch ended, and the remote's own words for it."""

    outcome: Outcome
    reason: str
    auth: bool = False

    @property
    def locked(self) -> bool:
        """Whether the remote could not take its own lock of the branch."""
        return self.outcome == "rejected" and bool(_LOCKED.search(self.reason))


@dataclass(frozen=True)
class Transport:
    """One remote repository and how it is reached. Made by ``Transport.to``.

    Attributes:
        url: its address, without credentials; fit to be shown.
        protocol: the one protocol that git may use for it.
        timeout: seconds a git program may take.
        extra: more variables for those programs, such as ``SSH_AUTH_SOCK``.
    """

    url: str
    protocol: str
    timeout: float
    extra: Mapping[str, str]
    _header: str | None = field(default=None, repr=False)
    _secrets: Collection[str] = field(default=(), repr=False)

    @classmethod
    def to(
        cls,
        url: str | os.PathLike[str],
        *,
        credentials: tuple[str, str] | None = None,
        timeout: float = 120.0,
        environment: Mapping[str, str] | None = None,
    ) -> Transport:
        """The transport to an address.

        Args:
            url: what git takes for one: a URL, ``user@host:path``, or a path of this machine.
            credentials: user and password (or token) for ``http`` and ``https``; those in the URL itself by default.
            timeout: seconds a git program may take.
            environment: more variables for git, such as ``SSH_AUTH_SOCK``.

        Raises:
            InvalidInput: it is no address of a known protocol, or there are credentials for a protocol that takes none, in it or beside it.
        """
        text = os.fspath(url)
        match = _ADDRESS.match(text)
        if not text or text.startswith("-") or "\n" in text or "\0" in text or "::" in text.partition("/")[0]:
            raise _no_address(text)
        if match is None:
            protocol = "ssh" if _SCP.fullmatch(text) else "file"
            clean = text if protocol == "ssh" else f"file://{quote_path(os.path.abspath(text))}"
        else:
            protocol, clean = match["scheme"].lower(), text
        if protocol not in _SCHEMES:
            raise _no_address(text)
        if protocol in ("http", "https"):
            clean, credentials = _apart(text, credentials)
        elif match is not None and ":" in urlsplit(text).netloc.rpartition("@")[0]:
            raise InvalidInput(
                f"The address {_without_user(text)!r} has a password in it, and {protocol} takes none.",
                why="It is written into records, and shown.",
                fix="Leave it out; for ssh, give SSH_AUTH_SOCK in environment=.",
            )
        elif credentials is not None:
            raise InvalidInput(
                f"credentials= cannot be used with {protocol}.",
                why="Only http and https take a user and a password.",
                fix="Leave them out; for ssh, give SSH_AUTH_SOCK in environment=.",
            )
        header, secrets = _authorization(credentials)
        return cls(clean, protocol, timeout, dict(environment or {}), header, secrets)

    @property
    def header(self) -> str | None:
        """The header that carries its credentials; a secret."""
        return self._header

    @property
    def place(self) -> str | None:
        """Where it is on this machine, if it is."""
        return unquote(self.url.removeprefix("file://"), errors="surrogateescape") if self.protocol == "file" else None

    def run(
        self,
        arguments: Sequence[str],
        *,
        settings: str,
        variables: Mapping[str, str] | None = None,
        holding: Collection[int] = (),
    ) -> Answer:
        """Run git once.

        Args:
            arguments: the command line after ``git``.
            settings: the configuration file that it, and a git it starts at the other end on this machine, read as the user's.
            variables: more variables, such as ``GIT_DIR``.
            holding: descriptors that it and its children keep open, for as long as any of them lives.

        Raises:
            GitFailed: there is no git.
        """
        git_version()
        process = subprocess.Popen(
            [git_binary(), *arguments],
            cwd="/",
            env=self._environment(settings) | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=tuple(holding),
            start_new_session=True,
        )
        with process:
            try:
                out, words = process.communicate(timeout=self.timeout)
            except BaseException as error:
                # Its helpers go with it: a push that nobody waits for must not land.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return Answer(None, "", f"it did not answer within {self.timeout:g} s")
        return Answer(process.returncode, os.fsdecode(out), self.shown(os.fsdecode(words)))

    def _environment(self, settings: str) -> dict[str, str]:
        given = hermetic_env() | dict(self.extra)
        given.update(GIT_CONFIG_GLOBAL=settings, GIT_ALLOW_PROTOCOL=self.protocol, GIT_SSH_COMMAND="ssh -oBatchMode=yes")
        if self._header is not None:
            # By variable: a command line can be read by everybody. Git would follow a redirection with the header.
            told = {"http.extraHeader": self._header, "http.followRedirects": "false"}
            given["GIT_CONFIG_COUNT"] = str(len(told))
            for number, (key, value) in enumerate(told.items()):
                given |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return given

    def shown(self, text: str) -> str:
        """A text of git's with no secret and no control character in it."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return _UNPRINTABLE.sub("", text.replace("\r", "\n"))

    def refusal(self, answer: Answer) -> GittrixError:
        """The error for a remote that could not be read."""
        if _AUTH.search(answer.words):
            return self.unauthorized("read", answer.told)
        what = answer.told or f"git ended with status {answer.status}"
        return AdapterUnavailable(
            f"{self.url} cannot be read: {what}.",
            why="The engine asks the remote itself where a branch is; an old answer could hide what changed there.",
            fix="See that the address is right and the remote can be reached, then try again.",
        )

    def unauthorized(self, doing: str, told: str) -> AuthFailed:
        """The error for credentials that do not do."""
        return AuthFailed(
            f"{self.url} does not let you {doing}: {told}.",
            why="The remote refused the credentials, or there were none; the engine asks nobody and uses no credential helper.",
            fix="Give credentials=(user, token), with the rights that the token needs there.",
        )


def pushed(answer: Answer, ref: str) -> Pushed:
    """How a ``git push --porcelain`` of one branch ended.

    Args:
        answer: of that program.
        ref: full name of the branch at the remote.
    """
    for line in answer.out.splitlines():
        flag, _, rest = line.partition("\t")
        names, _, summary = rest.partition("\t")
        if not names.endswith(f":{ref}"):
            continue
        if flag != "!":
            return Pushed("landed", summary)
        found = _REASON.search(summary)
        reason = found[1] if found else summary
        if "[remote failure]" in summary:
            return Pushed("unknown", reason)
        return Pushed("rejected", f"{reason}: {answer.remote}" if answer.remote else reason)
    auth = bool(_AUTH.search(answer.words))
    if _NOT_TAKEN.search(answer.words):
        return Pushed("refused", answer.told, auth)
    if answer.status is None or _SENT.search(answer.words):
        return Pushed("unknown", answer.told)
    return Pushed("refused" if auth or _UNSENT.search(answer.words) else "unknown", answer.told, auth)


def is_address(text: str) -> bool:
    """Whether a text is the address of a remote, such as ``https://...`` or ``user@host:path``, and not a path of this machine."""
    match = _ADDRESS.match(text)
    return (match is not None and match["scheme"].lower() in _SCHEMES) or (_SCP.fullmatch(text) is not None and not os.path.lexists(text))


def quote_path(path: str) -> str:
    """A path as a URL holds it, readable where that is plain."""
    return quote(os.fsencode(path), safe="/:@~!$&'()*+,;=-._ ")


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _apart(url: str, given: tuple[str, str] | None) -> tuple[str, tuple[str, str] | None]:
    """A URL without its credentials, and those."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    if given is None and parts.username is not None:
        given = unquote(parts.username), unquote(parts.password or "")
    return parts._replace(netloc=place).geturl(), given


def _authorization(credentials: tuple[str, str] | None) -> tuple[str | None, tuple[str, ...]]:
    """The header that carries credentials, and every text that would give them away."""
    if credentials is None:
        return None, ()
    user, password = credentials
    if any(bad in user + password for bad in "\r\n\0") or ":" in user:
        raise InvalidInput("credentials= hold a character that no header can.", fix="Give user and token as they are, without line ends.")
    word = base64.b64encode(f"{user}:{password}".encode()).decode()
    return f"Authorization: Basic {word}", tuple(text for text in (word, password, quote(password, safe="")) if text)


def _no_address(text: str) -> InvalidInput:
    shown = re.sub(r"//[^/@]*@", "//", text)[:200]
    return InvalidInput(
        f"{shown!r} is no address of a repository.",
        why="An address that git would run as a command, or read as an option, is never one.",
        fix=f"Give a path, user@host:path, or a URL of one of these: {', '.join(_SCHEMES)}.",
    )
