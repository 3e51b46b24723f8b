"""Run git against a remote repository, and turn what it reports into results and typed errors.

An address may be any that git accepts (``file://``, ``http(s)://``, ``ssh://``, ``git://``), except one that names a command to run
(``ext::``). ``github://owner/repo`` is that repository at GitHub, or at the forge whose API ``GITTRIX_FORGE_URL`` names. Git sees
nothing of the user who runs the engine: no configuration, no credential helper, no prompt. A git program that exceeds its timeout is killed
together with every process that it started.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import quote, unquote, urlsplit

from pytest_gittrix.errors import AdapterUnavailable, Advice, AuthFailed, GittrixError, InvalidInput
from pytest_gittrix.git.environment import git_binary, git_version, hermetic_env
from pytest_gittrix.os_level.process_tree import end_tree

Outcome = Literal["landed", "rejected", "refused", "unknown"]
"""How a push ended: the branch moved; the remote rejected the update; the push failed before it reached the branch; not known."""

FETCH_COMMAND: Final = ("fetch", "-q", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance", "--force")
"""The git command that fetches."""
PUSH_COMMAND: Final = ("push", "--porcelain", "--no-verify", "--no-signed", "--no-follow-tags", "--recurse-submodules=no")
"""The git command that pushes; ``parse_push`` reads its output."""
# For a remote on this machine, the git at the other end reads this file too. The remote's own hooks run all the same.
GIT_SETTINGS: Final = """\
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
"""Contents of the configuration file for a git that talks to a remote."""

_SCHEMES: Final = ("file", "http", "https", "ssh", "git")
_GITHUB: Final = re.compile(r"github://([\w.-]+/[\w.-]+?)(?:\.git)?/?", re.IGNORECASE)
_FORGE_URL: Final = "GITTRIX_FORGE_URL"
_SCP: Final = re.compile(r"[\w.~-]+@[\w.-]+:(?!/?/)[^:]+|[\w.-]+\.[\w.-]+:(?!/?/)[^:]+")
_ADDRESS: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_MAX_MESSAGE: Final = 2000
_HIDDEN: Final = "***"
_UNPRINTABLE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")

_AUTH: Final = re.compile(
    r"authentication failed|could not read (?:username|password)|terminal prompts disabled|permission denied \(|"
    r"returned error: 40[13]\b|rpc failed; http 40[13]\b|invalid username or",
    re.IGNORECASE,
)
# The server's status says that it did not accept the commit; the commit had not been sent yet; the commit had been sent.
_NOT_TAKEN: Final = re.compile(r"rpc failed; http 4\d\d\b", re.IGNORECASE)
_UNSENT: Final = re.compile(r"unable to access", re.IGNORECASE)
_SENT: Final = re.compile(r"rpc failed|hung up|unexpected disconnect|early eof", re.IGNORECASE)
_LOCKED: Final = re.compile(r"\.lock'?: File exists", re.IGNORECASE)
_REASON: Final = re.compile(r"\((.*)\)$")


@dataclass(frozen=True, slots=True)
class GitResult:
    """The result of one git program.

    Attributes:
        status: its exit status; None if it exceeded its timeout and was killed.
        stdout: its standard output.
        stderr: its standard error, without secrets and control characters.
    """

    status: int | None
    stdout: str
    stderr: str

    @property
    def remote_message(self) -> str:
        """What the remote printed, as one line; empty if it printed nothing."""
        lines = self.stderr.splitlines()
        return _one_line(line.strip().removeprefix("remote:") for line in lines if line.startswith("remote:"))

    @property
    def message(self) -> str:
        """What the remote printed, or else what git itself printed, as one line."""
        return self.remote_message or _one_line(self.stderr.splitlines())


def _one_line(lines: Iterable[str]) -> str:
    return "; ".join(stripped for line in lines if (stripped := line.strip()))[:_MAX_MESSAGE]


@dataclass(frozen=True, slots=True)
class PushResult:
    """The result of pushing one branch.

    Attributes:
        outcome: how the push ended.
        reason: the remote's own message.
        auth: whether the remote refused the credentials.
    """

    outcome: Outcome
    reason: str
    auth: bool = False

    @property
    def locked(self) -> bool:
        """Whether the remote could not lock the branch, because another git holds the lock there."""
        return self.outcome == "rejected" and bool(_LOCKED.search(self.reason))


@dataclass(frozen=True)
class Transport:
    """Runs git against one remote repository. Made by ``Transport.to``.

    Attributes:
        url: the address without credentials, so that it can be shown.
        protocol: the only protocol that git may use.
        timeout: seconds that one git program may take.
        environment: more variables for git, such as ``SSH_AUTH_SOCK``.
    """

    url: str
    protocol: str
    timeout: float
    environment: Mapping[str, str]
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
            url: a URL, ``user@host:path``, ``github://owner/repo``, or a path on this machine.
            credentials: user and password (or token) for ``http`` and ``https``; by default those in the URL.
            timeout: seconds that one git program may take.
            environment: more variables for git, such as ``SSH_AUTH_SOCK``.

        Raises:
            InvalidInput: the address has no known protocol, or credentials are given (in the address or separately) for a protocol that
                takes none.
        """
        text = github_url(os.fspath(url))
        match = _ADDRESS.match(text)
        if not text or text.startswith("-") or "\n" in text or "\0" in text or "::" in text.partition("/")[0]:
            raise _invalid_address(text)
        if match is None:
            protocol = "ssh" if _SCP.fullmatch(text) else "file"
            clean = text if protocol == "ssh" else f"file://{quote_path(os.path.abspath(text))}"
        else:
            protocol, clean = match["scheme"].lower(), text
        if protocol not in _SCHEMES:
            raise _invalid_address(text)
        if protocol in ("http", "https"):
            clean, credentials = _split_credentials(text, credentials)
        elif match is not None and ":" in urlsplit(text).netloc.rpartition("@")[0]:
            raise InvalidInput(
                f"The address {_without_user(text)!r} has a password in it, and {protocol} takes none.",
                why="Records and messages contain the address.",
                fix=Advice(
                    "Leave it out; for ssh, give SSH_AUTH_SOCK in environment=.",
                    "Leave it out; for ssh, an agent that holds the key is used.",
                ),
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
        """The HTTP header with the credentials. It is a secret."""
        return self._header

    @property
    def local_path(self) -> str | None:
        """The repository's path on this machine; None if it is elsewhere."""
        return unquote(self.url.removeprefix("file://"), errors="surrogateescape") if self.protocol == "file" else None

    def run(
        self,
        arguments: Sequence[str],
        *,
        settings: str,
        variables: Mapping[str, str] | None = None,
        inherit_fds: Collection[int] = (),
    ) -> GitResult:
        """Run git once.

        Args:
            arguments: the command line after ``git``.
            settings: configuration file in place of the user's, for this git and for a git that it starts on this machine.
            variables: more environment variables, such as ``GIT_DIR``.
            inherit_fds: descriptors that git and its children keep open for as long as any of them lives.

        Returns:
            The result. A status other than 0 is no error here.

        Raises:
            GitFailed: git is not installed.
        """
        git_version()
        process = subprocess.Popen(
            [git_binary(), *arguments],
            cwd="/",
            env=self._environment(settings) | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=tuple(inherit_fds),
            start_new_session=True,
        )
        with process:
            try:
                stdout, stderr = process.communicate(timeout=self.timeout)
            except BaseException as error:
                # Its helpers are killed too: a push must not land after the engine has stopped waiting for it.
                end_tree(process.pid)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return GitResult(None, "", f"it did not answer within {self.timeout:g} s")
        return GitResult(process.returncode, os.fsdecode(stdout), self.redact(os.fsdecode(stderr)))

    def _environment(self, settings: str) -> dict[str, str]:
        environment = hermetic_env() | dict(self.environment)
        environment.update(GIT_CONFIG_GLOBAL=settings, GIT_ALLOW_PROTOCOL=self.protocol, GIT_SSH_COMMAND="ssh -oBatchMode=yes")
        if self._header is not None:
            # As variables, since every user can read a command line. No redirection, since git would send the header there too.
            options = {"http.extraHeader": self._header, "http.followRedirects": "false"}
            environment["GIT_CONFIG_COUNT"] = str(len(options))
            for number, (key, value) in enumerate(options.items()):
                environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return environment

    def redact(self, text: str) -> str:
        """Replace secrets in a text that git printed, and remove its control characters."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return _UNPRINTABLE.sub("", text.replace("\r", "\n"))

    def read_error(self, result: GitResult) -> GittrixError:
        """The error for a remote that git could not read."""
        if _AUTH.search(result.stderr):
            return self.auth_error("read", result.message)
        what = result.message or f"git ended with status {result.status}"
        return AdapterUnavailable(
            f"{self.url} cannot be read: {what}.",
            why="The engine asks the remote itself where a branch is; an old answer could hide what changed there.",
            fix="Check that the address is right and that the remote can be reached, then try again.",
        )

    def auth_error(self, action: str, message: str) -> AuthFailed:
        """The error for missing or refused credentials.

        Args:
            action: what was attempted: ``read`` or ``write``.
            message: what the remote or git printed.
        """
        return AuthFailed(
            f"{self.url} does not let you {action}: {message}.",
            why="The remote refused the credentials, or there were none; the engine neither prompts for them nor uses a credential helper.",
            fix=Advice(
                "Give credentials=(user, token), with the rights that the token needs there.",
                "Set GITTRIX_FORGE_REPO and GITTRIX_FORGE_TOKEN to the repository and a token that has the rights needed there.",
            ),
        )


def parse_push(result: GitResult, ref: str) -> PushResult:
    """Determine how a ``git push --porcelain`` of one branch ended.

    Args:
        result: what git reported.
        ref: full name of the branch at the remote.
    """
    for line in result.stdout.splitlines():
        flag, _, rest = line.partition("\t")
        names, _, summary = rest.partition("\t")
        if not names.endswith(f":{ref}"):
            continue
        if flag != "!":
            return PushResult("landed", summary)
        found = _REASON.search(summary)
        reason = found[1] if found else summary
        if "[remote failure]" in summary:
            return PushResult("unknown", reason)
        return PushResult("rejected", f"{reason}: {result.remote_message}" if result.remote_message else reason)
    auth = bool(_AUTH.search(result.stderr))
    if _NOT_TAKEN.search(result.stderr):
        return PushResult("refused", result.message, auth)
    if result.status is None or _SENT.search(result.stderr):
        return PushResult("unknown", result.message)
    return PushResult("refused" if auth or _UNSENT.search(result.stderr) else "unknown", result.message, auth)


def is_address(text: str) -> bool:
    """Whether a text is the address of a remote, such as ``https://...`` or ``user@host:path``, rather than a path on this machine."""
    match = _ADDRESS.match(text)
    if match is not None:
        return match["scheme"].lower() in (*_SCHEMES, "github")
    return _SCP.fullmatch(text) is not None and not os.path.lexists(text)


def github_url(address: str) -> str:
    """The address for git of ``github://owner/repo``; any other address as it is."""
    match = _GITHUB.fullmatch(address)
    if match is None:
        return address
    api = urlsplit(os.environ.get(_FORGE_URL) or "https://api.github.com")
    return f"{api.scheme}://{api.netloc.removeprefix('api.')}/{match[1]}.git"


def quote_path(path: str) -> str:
    """Encode a path for a URL, leaving unreserved characters readable."""
    return quote(os.fsencode(path), safe="/:@~!$&'()*+,;=-._ ")


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _split_credentials(url: str, given: tuple[str, str] | None) -> tuple[str, tuple[str, str] | None]:
    """Split a URL into the URL without credentials and the credentials; ``given`` ones win over those in the URL."""
    parts = urlsplit(url)
    if given is None and parts.username is not None:
        given = unquote(parts.username), unquote(parts.password or "")
    return _without_user(url), given


def _authorization(credentials: tuple[str, str] | None) -> tuple[str | None, tuple[str, ...]]:
    """The HTTP header for credentials, and every text that would reveal them."""
    if credentials is None:
        return None, ()
    user, password = credentials
    if any(bad in user + password for bad in "\r\n\0") or ":" in user:
        raise InvalidInput(
            "credentials= have a character that is not allowed in a header.", fix="Give user and token as they are, without line ends."
        )
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return f"Authorization: Basic {encoded}", tuple(text for text in (encoded, password, quote(password, safe="")) if text)


def _invalid_address(text: str) -> InvalidInput:
    shown = re.sub(r"//[^/@]*@", "//", text)[:200]
    return InvalidInput(
        f"{shown!r} is not the address of a repository.",
        why="Git would run it as a command, read it as an option, or does not know its protocol.",
        fix=f"Give a path, user@host:path, github://owner/repo, or a URL of one of these: {', '.join(_SCHEMES)}.",
    )
