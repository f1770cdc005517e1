"""What becomes of a bit that changes where it lies, for each kind of file that outlives a process.

`python -m tests.faults` renders docs/reference/failure-recovery.md; `tests/unit/faults` holds both
together, and the list of all modules that write files.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.fault import Fault

_SAVED = "tests/unit/checkpoint/test_flips.py"
_NODE = "tests/unit/adapters/test_flips.py"
_REGISTRY = "tests/unit/registry/test_damage.py"
_JOURNAL = "tests/unit/nodeagent/app/test_journal.py"
_KEYS = "tests/unit/checkpoint/test_keys.py"


@dataclass(frozen=True, slots=True)
class Flip(Fault):
    """A bit changes in a kind of file, the fault; `seen` by whom and how. `writers`: the modules
    that write such files."""

    seen: str
    writers: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """See `Fault`."""
        return f"**{self.fault}**: seen by {self.seen}; {self.end}", f"`{self.test}`"


_OBJECTS = ("kybernate/adapters/objects/objects.py",)

FLIPS = (
    Flip(
        "agent's journal (seats, moves, operations, what is to be dropped)",
        "the other lines count, the file is kept aside, `JournalIntact` is `False`; the driver "
        "and the artifacts are asked",
        f"{_JOURNAL}::test_each_flipped_bit_is_told_and_costs_one_line_or_two",
        "a sum for each line",
        ("kybernate/adapters/files/journal.py",),
    ),
    Flip(
        "manifest",
        "that copy is refused, another one is taken; it is neither swept nor dropped by itself",
        f"{_SAVED}::test_a_changed_manifest_is_seen",
        "its signature",
        (*_OBJECTS, "kybernate/checkpoint/delivery/inbox.py"),
    ),
    Flip(
        "raw images, `kybernate.json` and `files.json` among them, and the hashes of their pieces",
        "no byte of it is restored; another copy is taken",
        f"{_SAVED}::test_of_a_raw_one_no_changed_byte_is_restored_and_the_other_copy_is_taken",
        "a hash for each MiB, in the manifest",
        (
            "kybernate/checkpoint/delivery/inbox.py",
            "kybernate/checkpoint/raw/seal.py",
            "kybernate/adapters/criu/record.py",
            "kybernate/adapters/container/criuimages.py",
        ),
    ),
    Flip(
        "pack",
        "no byte of it is restored, and nothing is built upon it any more; another copy is taken",
        f"{_SAVED}::test_of_a_packed_one_no_changed_byte_is_restored",
        "each chunk's seal",
        _OBJECTS,
    ),
    Flip(
        "index of a pack",
        "its chunks are stored again",
        f"{_SAVED}::test_a_changed_index_costs_room_and_nothing_else",
        "a keyed hash",
        _OBJECTS,
    ),
    Flip(
        "wrapped data key",
        "later artifacts have another one; each manifest has its own copy of the key that it needs",
        f"{_SAVED}::test_a_changed_data_key_is_passed_over",
        "its seal",
        _OBJECTS,
    ),
    Flip(
        "a writer's lease, a condemned pack's mark",
        "nothing that is named is deleted; a lease ends at once, or after a week at most",
        f"{_SAVED}::test_a_changed_lease_or_mark_deletes_nothing_that_is_needed",
        "not seen",
        _OBJECTS,
    ),
    Flip(
        "registry's SQLite file",
        "the registry isn't ready and says what to do: a backup, or `kyb-registry rebuild`",
        f"{_REGISTRY}::test_the_database",
        "each row is held twice, and compared at the start",
        ("registry/database.py",),
    ),
    Flip(
        "its write-ahead log",
        "the log is kept aside, and no pod can be claimed until `kyb-registry settle`",
        f"{_REGISTRY}::test_its_log",
        "transactions behind its first wrong frame",
        ("registry/database.py",),
    ),
    Flip(
        "device plugin's inventory",
        "the file is kept aside, GPUs are looked for again, and the log says to drain the "
        "node if one is lost",
        f"{_NODE}::test_the_plugins_inventory",
        "a sum",
        ("deviceplugin/state.py",),
    ),
    Flip(
        "a seat's CDI file",
        "its container may open no GPU, and says why; the file is rewritten for the next container",
        f"{_NODE}::test_a_seats_devices",
        "each device's number is compared with its path's",
        ("kybernate/adapters/container/cdi.py",),
    ),
    Flip(
        "limits that were lifted for a restore",
        "they stay lifted until the container is restarted, and the log says so",
        f"{_NODE}::test_limits_that_were_lifted",
        "a sum",
        ("kybernate/adapters/criu/limits.py",),
    ),
    Flip(
        "addresses that a network was lent",
        "they stay until the pod is deleted, and the log says so",
        f"{_NODE}::test_what_a_network_was_lent",
        "a sum",
        ("kybernate/adapters/criu/net/loans.py",),
    ),
    Flip(
        "`kyb-init` on the node",
        "a whole one is put in its place",
        f"{_NODE}::test_the_built_kyb_init",
        "its name is its hash",
        ("nodeagent/app/install.py",),
    ),
)

NONE = {
    "kybernate/adapters/arrivals/gate.py": "on a memory file system",
    "nodeagent/api/runtimemarks.py": "on a memory file system",
    "kybernate/adapters/criu/pages.py": "a status that tells CRIU one word, made again for each",
    "kybernate/adapters/keys/artifactkeys.py": "for a Secret; agents read it from there",
    "kybernate/adapters/clientstore.py": "for a Secret; proxies read it from there",
    "kybernate/adapters/pki/__init__.py": "keys and certificates; TLS refuses what isn't right",
    "kybernate/api/crds.py": "generates a file of the repository",
    "kybernate/adapters/files/diskspeed.py": "to measure a disk, and removed",
    "kybernate/cli/planning/calibrate.py": "measurements, for whoever asked for them",
    "kybernate/local/logs.py": "what models write, for people",
    "kybernate/local/folders.py": "ports and memory of models; another port is a start, and who "
    "holds more memory than is known of it is parked and measured again",
    "kybernate/cli/artifacts/commands.py": "an export, which is sealed like a place",
}
"""Modules that write files which are nothing of the above, and what these are."""
