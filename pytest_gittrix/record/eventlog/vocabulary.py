"""The vocabulary of events of a session. It is closed: a new kind of event is a new row here and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """One row of the vocabulary: what the event means, and the keys its data must and may have; with ``open``, any others too."""

    doc: str
    required: frozenset[str]
    optional: frozenset[str]
    open: bool = False


def _kind(doc: str, required: str = "", *, optional: str = "", open: bool = False) -> Kind:
    return Kind(doc, frozenset(required.split()), frozenset(optional.split()), open)


# Times in data are nanoseconds and end in _ns; a text that may not be UTF-8 (a path) goes through path_fields.
_SESSION: Mapping[str, Kind] = {
    "session.created": _kind(
        "A session was started from durable's head; policy is {ttl_idle_ns, ttl_absolute_ns, until_promote, manual}, "
        "and each of seed_files is {path, resource}. kept is the parent's last promotion after which it went on, if it handed on.",
        "task durable_ref durable_path durable_branch baseline ephemeral_ref workspace workspace_kind git_backed policy format",
        optional="id_seed history strategy identity lineage seed_files earlier_baselines kept keep_after_promote",
    ),
    "session.imported": _kind("A session of a TypeScript store got a log; metadata is its record as it was.", "metadata"),
    "workspace.ready": _kind(
        "The workspace is complete and the agent may use it. Each of included is {path, files, size}: what it got from durable's checkout, "
        "with the number of its files and their bytes. left_out has a line for each path that was not included, with the reason.",
        "path",
        optional="included left_out",
    ),
    "session.accessed": _kind("The session was used without a change, so its idle time starts again.", optional="op"),
    "session.write": _kind('A file was written or deleted through the session (op is "write" or "delete").', "path op"),
    "session.commit": _kind(
        "The agent committed in its workspace, without the files that left_out names.", "sha message", optional="left_out"
    ),
    "session.extended": _kind("The idle limit was replaced; null means none.", "ttl_idle_ns"),
    "session.relocated": _kind("Durable is at another place on this machine now.", "durable_ref durable_path"),
    "touched.seen": _kind(
        "A look at the files found other touched paths than the log had until then; each of added and gone is {path}.", "added gone"
    ),
    "session.activity": _kind("Files changed in the workspace without a call of the session, last at observed_ns.", "observed_ns"),
    "promote.intent": _kind(
        "A promotion is about to move ref from parent to commit; who holds the lease is doing it.",
        "commit parent ref tree paths_digest count",
        optional="branch strategy message pack owner base title body draft keep",
    ),
    "promote.done": _kind(
        "The selection is on the branch: the session is promoted; pr_failed is why there is no pull request.",
        "commit ref branch strategy",
        optional="pr_url pr_failed patch",
    ),
    "promote.kept": _kind(
        "The selection is on the branch, and the session goes on: commit is its baseline instead of before, and branch its branch. "
        "Each of merged is {path, mode, id}: what the session had where the commit has a merged text. "
        "Each of in_durable is {path}, of a file that was given to the session or deleted through it. "
        "Each of promoted is {path}, of what the commit has as the session had it, if durable had changed since before.",
        "commit ref branch strategy before",
        optional="pr_url pr_failed merged in_durable promoted",
    ),
    "session.rebased": _kind(
        "The session's baseline moved from before to commit, which durable has; no branch moved. "
        "Each of merged is {path, mode, id, becomes}: what the session had where durable changed it too, and the {mode, id} of the merged "
        "text, unless that is durable's. Each of in_durable is as in promote.kept.",
        "commit before",
        optional="merged in_durable",
    ),
    "promote.aborted": _kind("The intended commit did not reach the branch; nothing moved.", "commit reason"),
    "promote.conflict": _kind("Durable's head overlaps the selection; nothing moved.", "paths_digest count head"),
    "worktree.updated": _kind("The human's checked-out files were brought forward to the promoted commit.", "commit"),
    "worktree.stale": _kind("The human's checked-out files were left behind the promoted commit, for this reason.", "commit reason"),
    "archive.written": _kind(
        "Work that was not promoted was set aside as a commit, a patch or both.", "touched", optional="commit patch ref reason"
    ),
    "session.ended": _kind(
        'The session ended (state is "promoted", "discarded" or "expired"; outcome says how its agent did).',
        "state",
        optional="reason outcome successor",
    ),
    "eviction.postponed": _kind(
        "To archive the work of an ended session took longer than budget_ns, so it was left for the next sweep; or, if in_use names them, "
        "its workspace was left where it is until those who work there have ended.",
        "budget_ns",
        optional="in_use",
    ),
    "session.identified": _kind("The session's identity changed; null removes a field.", "identity"),
    "step.started": _kind("The agent began a step of its workflow.", "step", optional="molecule_id"),
    "step.completed": _kind("The agent ended a step of its workflow.", "step", optional="outcome"),
    "handoff.intent": _kind("The session is about to be handed to the one named child; who holds the lease is doing it.", "child"),
    "session.succeeded": _kind("A session was started to go on with this one, which had crashed.", "child"),
    "handoff.aborted": _kind("The child was not started; the session goes on.", "child reason"),
    "succession.aborted": _kind("The session that was to go on with this one never came to be.", "child reason"),
    "workspace.kept": _kind(
        "The files, except those that left_out names, were saved as this tree, so that a fork can begin with them.",
        "tree",
        optional="left_out",
    ),
    "workspace.removed": _kind("The workspace is gone, with the ignored files that left_out names; the record stays.", optional="left_out"),
    "run.started": _kind(
        "A program of the agent was started with a model whose exchanges are kept; run names it. It goes another way than parent did at "
        "its event at_seq, if there are these: exchanges are answered as they were then. home is the digest of the files that its home "
        "began with, empty for none.",
        "run command",
        optional="model parent at_seq exchanges home",
    ),
    "run.ended": _kind("That program ended, with code or by signal.", "run", optional="code signal reason"),
    "turn.started": _kind("The agent began a turn; turn names it, and runs says in what: process, thread or task.", "turn runs"),
    "turn.ended": _kind(
        "A turn is over (status is done, failed, interrupted, or lost with the process it ran in).", "turn status", optional="reason"
    ),
    "prompt.queued": _kind(
        "A prompt waits for the agent; source says where it came from, and no other prompt of the session has its key.",
        "text source",
        optional="key",
    ),
    "hearing.began": _kind("The agent hears of what is new at source from here on: of what has a number above after.", "source after"),
    "durable.moved": _kind("A ref of durable moved and no promotion moved it.", "ref old new"),
    "log.recovered": _kind("The torn end of the log, left by a killed writer, was cut off.", "dropped_bytes"),
}

# The conversation of a session, by the names that Pixir gives its canonical events (docs/explanation/you-know-pixir.md).
CONVERSATION: Mapping[str, Kind] = {
    "user_message": _kind("The user said something.", "text", optional="resources metadata"),
    "assistant_message": _kind("The agent answered.", "text", optional="metadata"),
    "reasoning": _kind("The model reasoned; item is what its provider wants back.", "item model", optional="dialect"),
    "skill_activation": _kind("A skill was brought in.", open=True),
    "subagent_event": _kind("Something happened to an agent that this one started.", open=True),
    "workflow_event": _kind("Something happened to a workflow.", open=True),
    "branch_summary": _kind("What the part that a fork left out came to.", open=True),
    "history_compaction": _kind("The history up to range.to_seq is summed up in summary.", "range summary", open=True),
    "provider_usage": _kind("What a call of the model's provider cost.", open=True),
    "turn_failed": _kind("A turn ended in an error.", "terminal_status error_kind error_message", optional="details"),
    "tool_call": _kind("The agent calls a tool.", "call_id name args"),
    "tool_result": _kind("What the tool gave, or why it failed.", "call_id ok", optional="output error"),
    "permission_decision": _kind("Whether a call was allowed.", "call_id decision", open=True),
}

ROLE = "build"
"""The role of an agent whose session names none (Pixir)."""

# What is observed of a session from outside, what its agent reports, and what is decided (docs/explanation/you-know-agent-orchestrator.md).
OBSERVED: Mapping[str, Kind] = {
    "runtime.observed": _kind(
        "A probe observed the agent's runtime (state is unknown, alive, exited, missing or probe_failed).",
        "state",
        optional="pid start_time exit_code source reason confinement network limit",
    ),
    "activity.observed": _kind(
        "The agent was observed to be active, ready, idle, waiting_input, blocked or exited; it was last active at observed_ns.",
        "state source",
        optional="observed_ns detail",
    ),
    "model.exchange": _kind(
        "The agent's model was asked, for the number-th time, and answered: digest is of the request, calls are the tools that it called, "
        "input and output are tokens, and content is the attachment that has what was said, if it was kept. Then tape is the one that "
        "has it as a line of a tape, and files the tree of the files when the request came; origin is tape if a recording answered.",
        "number protocol digest duration_ns",
        optional="model input output calls failure fault side delivered content tape files origin turn run",
    ),
    "pr.observed": _kind(
        "The forge reported the state of the session's pull request (none, open, merged or closed).",
        "state",
        optional="number url title owner repo branch base_branch draft ci review mergeable",
    ),
    "report.submitted": _kind(
        "The agent reported its progress; accepted says whether that counts.", "report accepted", optional="reason note"
    ),
    "status.decided": _kind(
        "The phase that was decided from the observations; evidence and attempts are set while these contradict each other.",
        "session reason",
        optional="evidence attempts",
    ),
    "session.restored": _kind("The session's agent was started again after its end.", optional="reason"),
}

# The life cycle of a member's session, from its opening until its workspace is gone (docs/explanation/you-know-botminter.md).
LIFE: Mapping[str, Kind] = {
    "session.opened": _kind(
        "A session of an agent was opened, with a workspace of repositories that is yet to be filled; kind is loop, interactive or brain.",
        "task kind member repositories workspace policy",
        optional="team work_item identity",
    ),
    "life.moved": _kind(
        "The session went on to another state of its life; result is the status of an ending that needed no finalization.",
        "to",
        optional="reason result",
    ),
    "agent.launched": _kind(
        "The agent's process was started, confined as it says; while the session is finalizing, the one that finalizes.",
        "pid",
        optional="start_time command confinement",
    ),
    "agent.exited": _kind(
        "A process is gone: of those that run, the one that was started last.", optional="code signal reason network limit stop_reason"
    ),
    "stop.requested": _kind("The agent was asked to stop; force leaves it no time to finish.", optional="force reason"),
    "finalize.started": _kind("An attempt began to save what the workspace holds.", "attempt"),
    "finalize.repository": _kind(
        "What was done about a repository (action is committed, pushed, recovered, left, skipped or failed); what is left is nowhere else.",
        "name action",
        optional="branch commit files reason",
    ),
    "finalize.finished": _kind(
        "The attempt is over (status is Completed, CompletedDegraded, Failed or Skipped); issues are the addresses of those it opened.",
        "status",
        optional="reason issues",
    ),
    "work.locked": _kind("The session alone works on item now.", "item"),
    "work.released": _kind("The session works on item no more.", "item"),
}

VOCABULARY: Mapping[str, Kind] = {**_SESSION, **LIFE, **OBSERVED, **CONVERSATION}

# Announced to listeners, never stored: nothing can depend on them after the fact.
LIVE: Mapping[str, Kind] = {
    "sweep.finished": _kind("A sweep went over every session; problems are the records it could not read.", "evicted problems"),
    "text_delta": _kind("A piece of the answer, as it comes.", "chunk"),
    "reasoning_delta": _kind("A piece of the reasoning, as it comes.", "chunk"),
    "status": _kind("What the agent is doing: thinking, done, error, interrupted.", "status"),
    "plan": _kind("What the agent means to do.", "entries"),
    "context_pressure": _kind("The model's context fills up.", open=True),
    "promote.waiting": _kind("A promotion waits for its turn in a repository; holder says who has it, since when and for what.", "holder"),
    "promote.secrets": _kind("What is about to land looks like credentials; found has a line for each file.", "found"),
    "engine.error": _kind("Background work failed; there was no caller to raise to.", "code message"),
}
