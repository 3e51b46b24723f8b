"""The daemon's requests say in the words of other systems what the verbs of the command line say in ours: same arguments, same choices."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import pytest

from pytest_gittrix.commands.declaration import Verb
from pytest_gittrix.commands.verbs import members, orchestrator
from pytest_gittrix.server import schema

# The verb of each request, and the argument of it for each name that differs.
VERBS: dict[type[schema.RequestBody], tuple[Verb, dict[str, str]]] = {
    schema.MemberStartRequest: (members.start, {"member_name": "member", "session_type": "kind", "work_item_id": "work_item"}),
    schema.StopRequest: (members.stop, {}),
    schema.StopManyRequest: (members.stop, {"mode": "all"}),
    schema.CleanupRequest: (members.cleanup, {"filter": "member", "value": "older_than"}),
    schema.SendRequest: (members.send, {}),
    schema.LockRequest: (members.lock, {"work_item_id": "item"}),
    schema.SpawnRequest: (orchestrator.spawn, {"projectId": "project", "issueId": "issue", "keepAfterPromote": "keep_after_promote"}),
    schema.LeadRequest: (orchestrator.spawn, {"projectId": "project", "systemPrompt": "prompt"}),
    schema.KillRequest: (orchestrator.kill, {}),
    schema.InstructRequest: (orchestrator.send, {}),
    schema.ClaimPrRequest: (orchestrator.claim_pr, {}),
    schema.ReportRequest: (orchestrator.report, {"state": "progress"}),
    schema.RetireRequest: (orchestrator.retire, {"projectId": "project", "dryRun": "dry_run"}),
}


def settings_of(verb: Verb) -> dict[str, dict[str, Any]]:
    """The settings of each argument of a verb, by the name that its value has."""
    found: dict[str, dict[str, Any]] = {}
    for one in verb.arguments:
        found.setdefault(one.settings.get("dest") or one.names[-1].lstrip("-").replace("-", "_"), dict(one.settings))
    return found


def choices(annotation: object) -> set[str]:
    """The words that a field can be, or none if it can be any."""
    if get_origin(annotation) is Literal:
        return {str(one) for one in get_args(annotation)}
    return {word for inner in get_args(annotation) for word in choices(inner)}


def test_every_request_about_sessions_has_a_verb() -> None:
    assert {*VERBS} | {schema.CommandRequest} == {*schema.RequestBody.__subclasses__()}


@pytest.mark.parametrize("body", VERBS, ids=lambda body: body.__name__)
def test_a_request_takes_what_its_verb_takes(body: type[schema.RequestBody]) -> None:
    verb, other_names = VERBS[body]
    arguments = settings_of(verb)

    for name, field in body.model_fields.items():
        argument = arguments[other_names.get(name, {"limits": "limit"}.get(name, name))]
        offered = {word.lower() for word in choices(field.annotation)}
        if offered and "choices" in argument:
            assert offered == {*argument["choices"]}, name
        if field.annotation is bool:
            assert field.default is argument.get("default", False), name
