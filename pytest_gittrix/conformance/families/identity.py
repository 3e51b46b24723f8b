"""IDS: a session is known by its id to every caller, and by nothing else (rule 7, docs/explanation/rules.md)."""

from __future__ import annotations

from pytest_gittrix.conformance.base.clause import needs, without_search
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import refused
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability


class IdentityClauses(Clauses):
    """Ids and states."""

    def test_ids_01_each_session_has_an_id_of_its_own(self, stage: Stage) -> None:
        """Otherwise two agents with the same task work in one another's files."""
        started = [stage.start("the same task") for _ in range(5)]

        assert len({session.id for session in started}) == len(started)

    def test_ids_02_every_session_is_listed_as_active(self, stage: Stage) -> None:
        """Otherwise a person cannot see what is going on in the repository."""
        started = [stage.start() for _ in range(3)]

        assert stage.gittrix.states() == {session.id: "active" for session in started}

    def test_ids_03_an_unknown_id_is_no_session(self, stage: Stage) -> None:
        """An unknown id is reported as no session.

        Otherwise a mistyped id creates a session, reaches another one, or ends in an unclear error.
        """
        known = stage.start()
        _means_nothing(stage, stage.gittrix.get_session(f"{known.id}0"))

        assert stage.gittrix.states() == {known.id: "active"}

    def test_ids_04_an_id_of_another_place_is_no_session(self, stage: Stage) -> None:
        """An id of another place is reported as no session.

        Otherwise an agent that is given the wrong repository writes into somebody else's.
        """
        with Stage.open(stage.system, files=self.files()) as elsewhere:
            theirs = elsewhere.start()
            _means_nothing(stage, stage.gittrix.get_session(theirs.id))

            assert theirs.touched_files() == []
        assert stage.gittrix.states() == {}

    def test_ids_05_an_id_is_never_given_again(self, stage: Stage) -> None:
        """An id is never reused. Otherwise an old handle reaches a new session that it has nothing to do with."""
        ended = []
        for _ in range(3):
            session = stage.start()
            session.evict()
            ended.append(session.id)

        assert len({*ended, stage.start().id}) == 4

    def test_ids_06_two_handles_are_one_session(self, stage: Stage) -> None:
        """Two handles of one id reach the same session. Otherwise a person reviews something other than what the agent wrote."""
        session = stage.start()
        other = stage.gittrix.get_session(session.id)
        other.read("app.py")

        session.write("app.py", "agent\n")

        assert other.read("app.py") == b"agent\n"
        assert other.touched_files() == ["app.py"]

    @needs(Capability.PROCESSES)
    @without_search
    def test_ids_07_two_engines_know_one_session(self, stage: Stage) -> None:
        """Two engines see the same session. Otherwise the person's terminal does not show what the agent's server started."""
        session = stage.start()
        other = stage.reopen().get_session(session.id)
        other.read("app.py")

        session.write("app.py", "agent\n")

        assert other.read("app.py") == b"agent\n"
        other.evict()
        refused("SESSION_EXPIRED", session.read, "app.py")

    def test_ids_08_states_have_their_documented_names(self, stage: Stage) -> None:
        """Otherwise no tool can tell a session that can still be promoted from one that was promoted."""
        active, promoted, evicted = (stage.start() for _ in range(3))
        promoted.write("app.py", "agent\n")
        promoted.promote()
        evicted.evict()

        assert stage.gittrix.states() == {active.id: "active", promoted.id: "promoted", evicted.id: "expired"}

    @needs(Capability.DISCARD)
    def test_ids_09_a_discarded_session_is_listed_so(self, stage: Stage) -> None:
        """A discarded session is listed as discarded.

        Otherwise work that a person rejected looks like work that was not reviewed in time.
        """
        session = stage.start()

        session.discard()

        assert session.state == "discarded"


def _means_nothing(stage: Stage, session: DrivenSession) -> None:
    """Check that every base verb refuses an id, and that durable does not change."""
    with stage.durable.unchanged():
        refused("SESSION_NOT_FOUND", session.read, "app.py")
        refused("SESSION_NOT_FOUND", session.write, "app.py", "agent\n")
        refused("SESSION_NOT_FOUND", session.files)
        refused("SESSION_NOT_FOUND", session.touched_files)
        refused("SESSION_NOT_FOUND", session.promote)
        refused("SESSION_NOT_FOUND", session.evict)
