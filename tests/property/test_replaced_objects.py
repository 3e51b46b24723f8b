"""What a baseline's objects lose and gain is found without a walk over all of them, and is what two such walks find."""

from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, Entry, flatten, parse_tree, write_trees
from pytest_gittrix.workspaces.seeds.on_disk import closure, replaced_objects

# Few names and few contents, so that equal files and equal directories are in several places.
_NAMES = st.sampled_from(["a", "b", "aa"])
_DIRECTORIES = st.lists(_NAMES, max_size=3).map(lambda names: "".join(f"d{name}/" for name in names))
_PATHS = st.builds("{}{}".format, _DIRECTORIES, _NAMES)
_BLOBS = [SHA1.hash_object("blob", b"%d" % number) for number in range(3)]
_ENTRIES = st.builds(Entry, st.sampled_from([FILE, EXECUTABLE]), st.sampled_from(_BLOBS)) | st.just(Entry(SUBMODULE, "5" * 40))
_FILES = st.dictionaries(_PATHS, _ENTRIES, min_size=1, max_size=12)


@given(before=_FILES, after=_FILES, kept=st.booleans())
def test_the_difference_of_two_baselines_is_that_of_all_their_objects(
    before: dict[str, Entry], after: dict[str, Entry], kept: bool
) -> None:
    stored: dict[str, bytes] = {}

    def tree_of(files: dict[str, Entry]) -> str:
        root, trees = write_trees(lambda _: {}, None, files, SHA1.hash_object)
        stored.update(trees)
        return root

    def read(id_: str) -> dict[bytes, tuple[int, str]]:
        return dict(parse_tree(stored[id_], SHA1.size))

    old, new = tree_of(before), tree_of(before | after if kept else after)

    found = replaced_objects(read, old, new, flatten(read, new))

    assert found is not None
    objects_of_old, objects_of_new = {*closure(read, {"": old})}, {*closure(read, {"": new})}
    assert found.gone == objects_of_old - objects_of_new
    assert (objects_of_old - found.gone) | found.new == objects_of_new


def test_a_directory_without_a_file_is_left_to_a_walk_over_all() -> None:
    stored = {"old": {b"d": (0o40000, "nothing")}, "nothing": {}, "new": {b"f": (FILE, "1" * 40)}}

    assert replaced_objects(stored.__getitem__, "old", "new", {"f": Entry(FILE, "1" * 40)}) is None
