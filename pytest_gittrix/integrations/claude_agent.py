"""The Claude Agent SDK at work in a session: the agent's program is confined, reaches its model and nothing else, and a person promotes.

Written against ``claude_agent_sdk``. What the SDK offers for that is used, and nothing below: the path of the program, hooks, the
permission callback, and the store of transcripts. ``docs/reference/integrations.md`` lists what is checked.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.aio.threads import decided, in_thread
from pytest_gittrix.errors import SessionExpired
from pytest_gittrix.extras import needs
from pytest_gittrix.integrations.adapter import SandboxAdapter
from pytest_gittrix.integrations.claude_program import ConfinedClaude, confined_claude

with needs("claude"):
    from claude_agent_sdk import (
        ClaudeAgentOptions,
        HookMatcher,
        PermissionResultAllow,
        PermissionResultDeny,
        SessionStore,
        fold_session_summary,
    )

if TYPE_CHECKING:
    from pytest_gittrix.confine.limits import ResourceLimits
    from pytest_gittrix.confine.network import ModelEndpoint
    from pytest_gittrix.engine.agents.agent_session import AgentSession
    from pytest_gittrix.record.eventlog.events import Event

Policy = Callable[[str, Mapping[str, Any]], str | Awaitable[str | None] | None]
"""Decides about a tool call, given the tool's name and arguments: None allows it, a text says to the agent why not.

It may wait for a person: a coroutine function is awaited, and any other is called in a thread of its own. Its answer is dropped once the
call is cancelled."""

SOURCE: Final = "claude-agent-sdk"
"""What ``source`` is in the ``workflow_event`` of a piece of transcript."""
PERSON: Final = 24 * 3600.0
"""Seconds that a policy may take, which may ask a person."""


def allow(tool: str, arguments: Mapping[str, Any]) -> str | None:  # noqa: ARG001  (a policy)
    """Allow each call: the agent stays confined, and cannot promote."""
    return None


@asynccontextmanager
async def claude_options(
    session: AgentSession,
    *,
    policy: Policy = allow,
    confine: str | None = None,
    network: str | ModelEndpoint | Iterable[str | ModelEndpoint] = ("model:anthropic",),
    limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
    readable: Iterable[Path | str] = (),
    program: Path | str | None = None,
    hooks: Mapping[str, list[HookMatcher]] | None = None,
    **options: Any,
) -> AsyncIterator[ClaudeAgentOptions]:
    """Options for ``query`` and ``ClaudeSDKClient``, for a block; programs that still run at its end are killed.

    Prompts, tool calls, their results and decisions are recorded in the session, and so is the transcript, from which ``resume=`` goes on.

    Args:
        session: the agent's side of a session, as ``for_agent()`` gives it.
        policy: decides about each tool call; ``allow`` by default.
        confine, network, limits, readable, program: as for ``confined_claude``.
        hooks: more hooks, by the name of their event.
        options: more of the SDK's options, such as ``model``, ``resume`` or ``max_turns``.

    Raises:
        ExtraMissing: the extra ``claude`` is not installed.
        GittrixError: as ``confined_claude``.
    """
    settings: dict[str, Any] = {"program": program, "confine": confine, "network": network, "limits": limits, "readable": readable}
    with ExitStack() as held:
        enter = partial(held.enter_context, confined_claude(session, **settings))
        claude: ConfinedClaude = await in_thread(enter, lambda _: held.close())
        log = _Log(session, policy)
        merged = {name: [*log.hooks().get(name, []), *(hooks or {}).get(name, [])] for name in {**log.hooks(), **(hooks or {})}}
        try:
            yield ClaudeAgentOptions(
                cli_path=claude.script,
                cwd=claude.programs.workspace,
                env={"CLAUDE_CONFIG_DIR": claude.configuration},
                hooks=merged,
                can_use_tool=log.may_use,
                session_store=_StoreOfHome(session, SandboxAdapter(claude.programs), claude.configuration),
                **options,
            )
        finally:
            await in_thread(held.pop_all().close)
            with suppress(SessionExpired):
                await log.end_calls("the agent was ended")


class _Log:
    """Records what the agent does, and has the policy decide about it."""

    def __init__(self, session: AgentSession, policy: Policy) -> None:
        self._session = session
        self._policy = policy
        self._decided: dict[str, str | None] = {}
        self._open: set[str] = set()

    def hooks(self) -> dict[str, list[HookMatcher]]:
        """The hooks by the names of their events. A call that cannot be recorded or judged is not made."""
        return {
            "UserPromptSubmit": [HookMatcher(hooks=[self._prompt])],
            "PreToolUse": [HookMatcher(hooks=[self._call], timeout=PERSON, on_failure="block")],
            "PostToolUse": [HookMatcher(hooks=[self._result])],
            "PostToolUseFailure": [HookMatcher(hooks=[self._failure])],
            "Stop": [HookMatcher(hooks=[self._answer])],
        }

    async def may_use(self, tool: str, arguments: dict[str, Any], context: Any) -> PermissionResultAllow | PermissionResultDeny:
        """The permission callback: what the policy has decided already, or decides now."""
        if context.tool_use_id not in self._decided:
            await self._decide(context.tool_use_id, tool, arguments)
        reason = self._decided[context.tool_use_id]
        return PermissionResultAllow() if reason is None else PermissionResultDeny(message=reason)

    async def _decide(self, call: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
        reason = self._decided[call] = await decided(self._policy, tool, arguments)
        await self._record("permission_decision", call_id=call, decision="allow" if reason is None else "deny")
        return reason

    async def _record(self, kind: str, **data: Any) -> None:
        await in_thread(partial(self._session.record, kind, data))

    async def end_calls(self, reason: str) -> None:
        """End the calls that have no result: the SDK does not say how an interrupted call ended."""
        for call in sorted(self._open):
            await self._end(call, ok=False, error=reason)

    async def _end(self, call: str, **result: Any) -> None:
        self._open.discard(call)
        await self._record("tool_result", call_id=call, **result)

    async def _prompt(self, data: Any, _: str | None, __: Any) -> dict[str, Any]:
        await self.end_calls("it was interrupted")
        await self._record("user_message", text=data["prompt"])
        return {}

    async def _answer(self, data: Any, _: str | None, __: Any) -> dict[str, Any]:
        if text := data.get("last_assistant_message"):
            await self._record("assistant_message", text=text)
        return {}

    async def _call(self, data: Any, _: str | None, __: Any) -> dict[str, Any]:
        call, tool, arguments = data["tool_use_id"], data["tool_name"], data["tool_input"]
        await self._record("tool_call", call_id=call, name=tool, args=arguments)
        self._open.add(call)
        reason = await self._decide(call, tool, arguments)
        if reason is None:
            return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}
        await self._end(call, ok=False, error=reason)
        decision = {"permissionDecision": "deny", "permissionDecisionReason": reason}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}

    async def _result(self, data: Any, _: str | None, __: Any) -> dict[str, Any]:
        await self._end(data["tool_use_id"], ok=True, output=data["tool_response"])
        return {}

    async def _failure(self, data: Any, _: str | None, __: Any) -> dict[str, Any]:
        await self._end(data["tool_use_id"], ok=False, error=data["error"])
        return {}


class GittrixSessionStore(SessionStore):
    """The SDK's store of transcripts in the log of a session, where forks and handoffs of the session find them too.

    What was deleted is hidden; the log keeps it.
    """

    def __init__(self, session: AgentSession) -> None:
        self._session = session

    async def append(self, key: Any, entries: list[Any]) -> None:
        """Record entries of a transcript."""
        if entries:
            await self._record(key, entries=[*entries])

    async def delete(self, key: Any) -> None:
        """Hide a transcript; a main one with those of its agents."""
        await self._record(key, deleted=True)

    async def load(self, key: Any) -> list[Any] | None:
        """The entries of a transcript, each once; None if there is none."""
        found = (await self._transcripts()).get(_name(key))
        return None if found is None else found[0]

    async def list_sessions(self, project_key: str) -> list[Any]:
        """The main transcripts of a project."""
        return [{"session_id": id_, "mtime": mtime} for id_, (_, mtime) in (await self._main(project_key)).items()]

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        """What the SDK makes of each main transcript of a project."""
        return [
            {**fold_session_summary(None, {"project_key": project_key, "session_id": id_}, entries), "mtime": mtime}
            for id_, (entries, mtime) in (await self._main(project_key)).items()
        ]

    async def list_subkeys(self, key: Any) -> list[str]:
        """The transcripts of the agents that a session started."""
        main = _name(key)[:2]
        return [name[2] for name in await self._transcripts() if name[:2] == main and name[2]]

    async def _record(self, key: Any, **what: Any) -> None:
        await in_thread(partial(self._session.record, "workflow_event", {"source": SOURCE, "transcript": {**key}, **what}))

    async def _main(self, project_key: str) -> dict[str, tuple[list[Any], int]]:
        found = await self._transcripts()
        return {id_: value for (project, id_, subpath), value in found.items() if project == project_key and not subpath}

    async def _transcripts(self) -> dict[tuple[str, str, str], tuple[list[Any], int]]:
        """By their names: the entries, and when the last ones came, in milliseconds since 1970."""
        return _transcripts(await in_thread(partial(self._session.history, ["workflow_event"])))


class _StoreOfHome(GittrixSessionStore):
    """The store that the SDK gets: to load a transcript puts it where the agent's program has it, from which it resumes by itself.

    The SDK would put it, with the person's credentials, into a directory that the program cannot see.
    """

    def __init__(self, session: AgentSession, files: SandboxAdapter, configuration: str) -> None:
        super().__init__(session)
        self._files = files
        self._configuration = configuration

    async def load(self, key: Any) -> list[Any] | None:
        # The project is named after the workspace, which has another path in a fork.
        project, session, _ = _name(key)
        wanted: dict[str, list[Any]] = {}
        for (_, id_, subpath), (entries, _) in (await self._transcripts()).items():
            if id_ == session:
                wanted.setdefault("/".join(part for part in (session, subpath) if part), []).extend(entries)
        for inside, entries in wanted.items():
            await in_thread(partial(self._restore, f"{self._configuration}/projects/{project}/{inside}.jsonl", entries))
        return None

    def _restore(self, path: str, entries: list[Any]) -> None:
        try:
            self._files.read(path)
        except FileNotFoundError:
            self._files.write(path, "".join(f"{json.dumps(entry, separators=(',', ':'))}\n" for entry in entries).encode())


def _name(key: Any) -> tuple[str, str, str]:
    return key["project_key"], key["session_id"], key.get("subpath") or ""


def _transcripts(events: Iterable[Event]) -> dict[tuple[str, str, str], tuple[list[Any], int]]:
    found: dict[tuple[str, str, str], tuple[list[Any], int]] = {}
    for event in events:
        if event.data.get("source") != SOURCE:
            continue
        name = _name(event.data["transcript"])
        if event.data.get("deleted"):
            found = {one: value for one, value in found.items() if one != name and (name[2] or one[:2] != name[:2])}
            continue
        entries, _ = found.get(name, ([], 0))
        known = {entry["uuid"] for entry in entries if "uuid" in entry}
        fresh = [entry for entry in event.data["entries"] if entry.get("uuid") not in known]
        found[name] = ([*entries, *fresh], event.ts // 10**6)
    return found
