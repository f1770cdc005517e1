"""The fault table of offload as data: what breaks, what the user of a seat sees, and the one test.

`python -m tests.faults` renders docs/reference/failure-recovery.md; `tests/unit/faults` holds both
together.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.fault import Fault

_KILLS = "tests/unit/nodeagent/offload/test_tier_kills.py"
_PRECOPIES = "tests/unit/nodeagent/operations/test_precopies.py"
_FAILURES = "tests/unit/nodeagent/offload/test_tier_failures.py"
_TIERS = "tests/unit/nodeagent/offload/test_tiers.py"
_BYTES = "tests/unit/checkpoint/test_faults.py"
_VAULT = "tests/unit/checkpoint/test_vault.py"
_POWER = "tests/unit/checkpoint/test_power.py"
_CRIU = "tests/integration/criu/test_failures.py"
_LAZIES = "tests/integration/criu/test_lazies.py"
_FILLING = "tests/integration/criu/test_filling.py"
_LOANS = "tests/unit/criu/test_addresses.py"
_REAL = "tests/faults/test_below.py::test_killed_after_every_journalled_step_below_ram"
_ADOPT = "tests/unit/nodeagent/artifacts/test_adopt.py"
_CLAIMS = "tests/unit/nodeagent/artifacts/test_claims.py"
_CALL_OFFS = "tests/unit/nodeagent/migration/test_calloffs.py"
_BEGUN_ANEW = "tests/unit/nodeagent/migration/test_moves_begun_anew.py"
_WITHIN = "tests/unit/nodeagent/migration/test_within_killed.py"
_COMING = "tests/unit/nodeagent/migration/test_coming_in.py"
_PEERS = "tests/unit/nodeagent/api/test_peers.py"
_HALVES = "tests/integration/criu/test_halves.py"
_COPIES = "tests/unit/nodeagent/offload/test_second_copy.py"
_DAMAGED = "tests/unit/nodeagent/offload/test_damaged.py"
_WAITS = "tests/unit/nodeagent/offload/test_tier_waits.py"
_SINCE = "tests/unit/nodeagent/app/test_recover_offload.py"
_REQUESTS = "tests/integration/controller/test_requests.py"
_STORMS = "tests/unit/simulation/test_simulation.py"


@dataclass(frozen=True, slots=True)
class Death(Fault):
    """An agent dies (-9) after a step, the fault; what the next one finds and does."""

    journal: str
    kyb_init: str
    there: str
    does: str

    def lines(self) -> tuple[str, ...]:
        """See `Fault`."""
        return (
            f"**{self.fault}**",
            f"found: journal {self.journal}; process 1 {self.kyb_init}; {self.there}",
            f"the next agent: {self.does}",
            f"the user sees: {self.end}",
            f"`{self.test.rpartition('/')[2]}`",
        )


def _at(kind: str, write: int, when: str) -> str:
    return f"{_KILLS}::test_killed_at_any_write_of_a_move_it_goes_on[{kind}-{write}-{when}]"


def _moment(state: str, moment: int) -> str:
    return f"{_KILLS}::test_killed_at_any_moment_of_a_move_it_goes_on[{moment}-{state}]"


_RAM, _NVME, _OBJECT = "parked in RAM", "parked on NVMe", "parked in the object store"
_NAMED = "dumping, with its name"
_SAVED, _FROZEN = "the artifact", "the frozen tree"
_LATER = "woken a little later"

DEATHS = (
    Death(
        "the intent to dump",
        _RAM,
        _at("dump", 2, "after"),
        "dumping",
        "kyb-run",
        _FROZEN,
        "lets TCP pass, keeps the seat in RAM",
    ),
    Death(
        "TCP held back",
        "parked in RAM; clients send again what came meanwhile",
        _moment("dumping", 2),
        "dumping",
        "kyb-run",
        _FROZEN,
        "lets TCP pass, keeps the seat in RAM",
    ),
    Death(
        "the middle of the dump",
        _RAM,
        _moment("dumping", 3),
        "dumping",
        "kyb-hold",
        "the tree, perhaps running; half an image",
        "freezes and heals the tree, removes the image",
    ),
    Death(
        "the dump",
        _RAM,
        _moment("dumping", 5),
        "dumping",
        "kyb-hold",
        "the frozen tree; an image",
        "freezes and heals the tree, removes the image",
    ),
    Death(
        "the seal",
        _RAM,
        _at("dump", 3, "before"),
        "dumping",
        "kyb-hold",
        "the frozen tree; an artifact that no record names",
        "drops that state, keeps the tree",
    ),
    Death(
        "the record of the seal",
        _NVME,
        _at("dump", 3, "after"),
        _NAMED,
        "kyb-hold",
        "both",
        "ends the tree",
    ),
    Death(
        "the middle of the end",
        _NVME,
        f"{_KILLS}::test_killed_in_the_middle_of_an_end_it_is_ended",
        _NAMED,
        "kyb-hold",
        "half a tree; the artifact",
        "ends the rest",
    ),
    Death(
        "the end",
        _NVME,
        _at("dump", 4, "before"),
        _NAMED,
        "kyb-parked",
        _SAVED,
        "writes the record",
    ),
    Death(
        "the record of the end",
        "parked on NVMe; the next request wakes it",
        _at("dump", 4, "after"),
        "parked-nvme",
        "kyb-parked",
        _SAVED,
        "listens at the gate again",
    ),
    Death(
        "the copy in the object store",
        _NVME,
        _at("object", 2, "before"),
        "parked-nvme",
        "kyb-parked",
        "both copies",
        "packs the artifact again; finds the chunks that are there",
    ),
    Death(
        "the record of the copy",
        _OBJECT,
        _at("object", 2, "after"),
        "parked-nvme, with both tiers",
        "kyb-parked",
        "both copies",
        "continues to drop the local one",
    ),
    Death(
        "the intent to drop the local copy",
        _OBJECT,
        _at("object", 3, "after"),
        "parked-object, with both tiers",
        "kyb-parked",
        "both copies",
        "drops the local one",
    ),
    Death(
        "the drop",
        _OBJECT,
        _at("object", 4, "before"),
        "parked-object, with both tiers",
        "kyb-parked",
        "the copy in the object store",
        "writes the record",
    ),
    Death(
        "the fetch",
        _LATER,
        _at("fetch", 5, "before"),
        "parked-object",
        "kyb-parked",
        "the artifact; images that no record names",
        "fetches again",
    ),
    Death(
        "the record of the fetch",
        _LATER,
        _at("fetch", 5, "after"),
        "parked-nvme, with a folder",
        "kyb-parked",
        "the artifact; its images",
        "restores from them",
    ),
    Death(
        "the intent to restore",
        _LATER,
        _at("restore", 3, "after"),
        "restoring",
        "kyb-parked",
        _SAVED,
        "listens again, then restores",
    ),
    Death(
        "the middle of the restore",
        _LATER,
        _moment("restoring", 3),
        "restoring",
        "kyb-parked",
        "half a tree; the artifact",
        "ends the half-made tree, which has never run, and restores again",
    ),
    Death(
        "the restore",
        "woken",
        _at("restore", 7, "before"),
        "restoring",
        "kyb-run",
        _FROZEN,
        "names its processes again, lets TCP pass",
    ),
    Death(
        "the record of the restore",
        "woken",
        _at("restore", 8, "after"),
        "parked",
        "kyb-run",
        _FROZEN,
        "nothing",
    ),
    Death(
        "the note, at the next dump of a restored tree, that its earlier artifact is to be dropped",
        _RAM,
        _at("again", 2, "after"),
        "parked, and the note",
        "kyb-run",
        "the frozen tree; a state that is worth nothing",
        "drops that state, keeps the tree",
    ),
    Death(
        "a seat's wake, before its artifact is dropped",
        "nothing",
        f"{_KILLS}::test_what_the_last_agent_had_no_time_to_remove_is_removed",
        "active",
        "kyb-run",
        "the running tree; a state that is worth nothing; perhaps a folder",
        "drops both",
    ),
)

_STAYS = (
    "the seat stays parked in RAM; an event (`KeptInRam`) says why; the agent tries again after "
    "`dump_retry_s`"
)
_KEPT = "the seat stays parked in RAM, an event says why, and the agent removes what was written"
_TOLD = f"{_FAILURES}::test_what_can_not_be_dumped_stays_in_ram_and_is_told"
_RESTARTED = "**restarted**"
_NOTHING_OF_IT = "**restarted**: nothing of it is restored"
_NONE_OR_WHOLE = "there is no artifact or a whole one; the next try completes it"
_AGAIN = "the agent notices it, says so, and tries again"
_PACK = f"{_BYTES}::test_a_pack_that_breaks_anywhere_leaves_none_or_a_whole_one"
_KEEPS = "an event says so; the state stays, and the same process answers once the old one is back"
_NOT_HERE = "refused, and an event says so; the pod is restarted, and the state stays"
_OWN = f"{_WAITS}::test_a_node_with_another_driver_or_gpu_keeps_the_state"
_FOREIGN = f"{_ADOPT}::test_another_machines_state_is_refused_and_stays"
_FETCH = f"{_BYTES}::test_a_fetch_from_a_store_that_breaks_is_told_and_can_be_tried_again"

BREAKAGES = (
    # who is killed
    Fault(
        "`kill -9` of the agent after each record of a seat's trip to the object store and back",
        "the same process answers",
        f"{_REAL}[agent]",
    ),
    Fault(
        "`kill -9` of CRIU after each of them",
        "the same process answers; in a window of milliseconds **restarted**",
        f"{_REAL}[criu]",
    ),
    Fault(
        "`kill -9` of kyb-init after each of them",
        "**restarted**, its artifact dropped",
        f"{_REAL}[kyb-init]",
    ),
    Fault(
        "`kill -9` of the controller, ten times while twelve CheckpointRequests are carried out",
        "each is done once",
        f"{_REQUESTS}::test_killed_at_any_time_each_is_done_once",
    ),
    Fault(
        "of two controllers the one that leads is killed",
        "the other takes the request over; it is done once",
        f"{_REQUESTS}::test_of_two_replicas_one_acts_and_the_other_follows",
    ),
    Fault(
        "a CheckpointRequest is deleted while no controller is there",
        "the next one has the agent cancel what it began for it",
        f"{_REQUESTS}::test_a_deletion_that_nobody_saw_is_found_on_the_agent",
    ),
    Fault(
        "`kill -9` of CRIU within a dump",
        "healed; connections continue",
        f"{_CRIU}::test_a_killed_dump_is_healed[0.03]",
    ),
    Fault(
        "`kill -9` of CRIU within a restore",
        "half-made processes are ended, and it is restored again",
        f"{_CRIU}::test_a_killed_restore_is_repeated[0.02]",
    ),
    Fault(
        "`kill -9` of the agent while a restored tree's old address stands on `lo`",
        "the next agent ends its connections to others, and takes the address back",
        f"{_LOANS}::test_what_a_dead_agent_has_lent_is_taken_back_by_the_next[this release]",
    ),
    Fault(
        "`kill -9` of what serves the memory of a tree that was restored lazily",
        "the tree waits for what is missing, and is **restarted**",
        f"{_LAZIES}::test_a_tree_whose_server_died_ends_rather_than_see_zeros",
    ),
    Fault(
        "`kill -9` of what serves a lazily restored tree's memory, while no agent runs",
        "the tree waits for what is missing; the next agent ends it, and it is **restarted**",
        f"{_LAZIES}::test_a_tree_waits_whose_server_died_while_no_agent_was_there[agent]",
    ),
    Fault(
        "the agent is killed while memory is on its way",
        "all memory comes; the next agent watches over the process that serves it",
        f"{_LAZIES}::test_the_next_agent_sees_all_memory_come_in[killed]",
    ),
    Fault(
        "the agent is killed while it verifies memory that a tree waits for",
        "the tree waits for what is not verified; the next agent continues",
        f"{_FILLING}::test_what_an_agent_did_not_get_to_the_next_one_fills",
    ),
    Fault(
        "memory that a tree waits for is damaged on NVMe",
        "the agent takes that memory from the object store, and repairs the copy on NVMe",
        f"{_FILLING}::test_a_wrong_piece_comes_from_another_place",
    ),
    Fault(
        "memory that a tree waits for is damaged on NVMe, and there is no other copy",
        "the tree never sees it, and is **restarted**",
        f"{_FILLING}::test_a_tree_of_which_a_piece_is_lost_ends_rather_than_see_it",
    ),
    Fault(
        "the container ends while it waits for a dead agent",
        "the next agent ends what serves its memory",
        f"{_FILLING}::test_what_waits_for_a_dead_agent_is_ended_with_its_container",
    ),
    Fault(
        "`kill -9` of the helper while its seat is offloaded",
        "the wake starts another helper",
        f"{_FAILURES}::test_a_helper_that_is_gone_when_a_seat_comes_back_is_replaced",
    ),
    Fault(
        "`kill -9` of all helpers after any record of a seat's way down to NVMe and back",
        "the same process answers",
        f"{_KILLS}::test_helpers_that_are_killed_at_any_write_of_a_way_down_and_up_change_nothing"
        "[0.001]",
    ),
    Fault(
        "`kill -9` of what seals, at any of its system calls",
        "no artifact or a whole one",
        f"{_BYTES}::test_a_seal_that_is_killed_leaves_no_artifact_or_a_whole_one",
    ),
    Fault(
        "`kill -9` of what packs, at any of its calls to the store",
        _NONE_OR_WHOLE,
        f"{_PACK}[kill-after]",
    ),
    Fault(
        "`kill -9` of what fetches",
        "the next fetch continues from there",
        f"{_BYTES}::test_a_fetch_that_is_killed_is_finished_by_the_next[5]",
    ),
    # the dump and the restore
    Fault(
        "CRIU can't dump the tree, for example io_uring",
        _STAYS,
        f"{_TOLD}[undumpable-io_uring]",
    ),
    Fault(
        "a connection waits to be accepted at the dump",
        _STAYS,
        f"{_TOLD}[dump-refused-waits to be accepted]",
    ),
    Fault("the dump fails", _STAYS, f"{_TOLD}[dump-fails-No space left]"),
    Fault(
        "the dump hangs",
        "the seat stays parked in RAM, an event says why, and the dump may end by itself",
        f"{_TOLD}[dump-hangs-did not end]",
    ),
    Fault(
        "the tree can't be healed after a killed CRIU",
        "**restarted**, and an event says why",
        f"{_FAILURES}::test_a_dump_that_leaves_it_unfit_ends_it_and_says_so",
    ),
    Fault(
        "a request comes during the dump",
        "the agent gives the dump up; the seat stays in RAM and wakes",
        f"{_TIERS}::test_a_seat_that_is_called_for_while_it_is_dumped_stays_in_ram",
    ),
    Fault(
        "processes outlive their end",
        "the agent ends them again until they are gone",
        f"{_FAILURES}::test_what_does_not_work_at_once_works_in_the_end[end-hangs]",
    ),
    Fault(
        "the gate doesn't open",
        "the agent tries again until it opens; the workload answers nothing before",
        f"{_FAILURES}::test_what_does_not_work_at_once_works_in_the_end[open-fails]",
    ),
    Fault(
        "the restore fails",
        "the agent restores again from the same artifact",
        f"{_FAILURES}::test_a_restore_that_fails_is_tried_again_from_the_same_state"
        "[restore-fails-criu]",
    ),
    Fault(
        "the restore hangs",
        "the agent ends the half-made processes, and restores again",
        f"{_FAILURES}::test_a_restore_that_fails_is_tried_again_from_the_same_state[restore-hangs]",
    ),
    Fault(
        "where the tree had a file lies something else, a link or nothing, or it has another size",
        "the agent tries again, in the end once a minute; an event says which file to put back",
        f"{_WAITS}::test_what_others_put_in_its_files_place_costs_no_state",
    ),
    Fault(
        "CRIU refuses three times for another reason, and memory was not short",
        "**restarted**, and an event says why",
        f"{_WAITS}::test_what_criu_refuses_three_times_is_given_up_and_started_anew",
    ),
    Fault(
        "out of memory on restore",
        "an event says so; the agent tries until there is room; then the same process answers",
        f"{_WAITS}::test_a_restore_that_lacks_memory_is_tried_until_there_is_some",
    ),
    Fault(
        "CRIU lacks memory twenty times in a row, and nothing is killed for it",
        "an event says so; each further time counts as a refusal: **restarted** after three more",
        f"{_WAITS}::test_a_lack_for_which_nothing_is_killed_is_believed_for_a_while",
    ),
    Fault(
        "the kernel kills CRIU in a restore for want of memory",
        "the agent tells it from a refusal, ends the half-made processes and keeps the images",
        f"{_CRIU}::test_out_of_memory_on_restore_can_be_repeated",
    ),
    # disks
    Fault(
        "the disk is full within a dump",
        "the tree continues as it was",
        f"{_CRIU}::test_a_full_disk_leaves_the_tree_as_it_was",
    ),
    Fault("the disk is full at the seal", _KEPT, f"{_TOLD}[seal-fails-No space left]"),
    Fault(
        "NVMe can't be listed while the next agent looks for what the last one sealed unnoticed",
        "the log says so, and the agent tries again; what was sealed since stays",
        f"{_SINCE}::test_what_was_sealed_since_stays[noted]",
    ),
    Fault("the disk does not sync", _KEPT, f"{_TOLD}[seal-hangs-did not sync]"),
    Fault("the journal's disk is full", _KEPT, f"{_TOLD}[disk-full-No space left]"),
    Fault("the place that is packed into is full", _NONE_OR_WHOLE, f"{_PACK}[full]"),
    Fault(
        "the disk is full at a fetch",
        "an event says so; the agent fetches once there is room",
        f"{_FAILURES}::test_a_fetch_that_fails_is_tried_again[begin-fails]",
    ),
    Fault(
        "the disk won't drop a state",
        "the agent tries until it does, and so does the next agent",
        f"{_FAILURES}::test_what_does_not_work_at_once_works_in_the_end[drop-fails]",
    ),
    Fault(
        "power fails within a seal: what was not synced is lost",
        "no artifact or a whole one",
        f"{_POWER}::test_power_fails_at_any_sync_of_a_seal",
    ),
    Fault(
        "power fails within a copy: what was not synced is lost",
        "no artifact or a whole one, and no other is broken",
        f"{_POWER}::test_power_fails_at_any_sync_of_a_pack",
    ),
    Fault(
        "power fails: records that were not synced are lost",
        "the seats continue from the records that were",
        f"{_STORMS}::test_storms_find_nothing",
    ),
    # the object store
    Fault(
        "the object store is away",
        "copies wait, the local copy stays, and the agent tries a fetch again",
        f"{_WAITS}::test_while_the_object_store_is_away_the_copy_waits_and_the_local_one_stays",
    ),
    Fault(
        "the object store is away when a seat wakes whose images were fetched before",
        "the seat wakes at once; the agent compares the node with its note of the fetch",
        f"{_WAITS}::test_a_store_that_is_away_holds_up_nothing_that_was_fetched[noted]",
    ),
    Fault("the object store does not answer one call of a copy", _NONE_OR_WHOLE, f"{_PACK}[down]"),
    Fault("the object store does not answer one call of a fetch", _AGAIN, f"{_FETCH}[down]"),
    Fault(
        "the object store is slow",
        "the call ends at its deadline; the next try continues from there",
        f"{_BYTES}::test_a_slow_store_ends_at_the_deadline_and_the_next_try_goes_on_from_there",
    ),
    Fault("the object store keeps half of what it is given", _NONE_OR_WHOLE, f"{_PACK}[truncate]"),
    Fault("the object store gives half of an object", _AGAIN, f"{_FETCH}[truncate]"),
    Fault("the object store gives other bytes", _AGAIN, f"{_FETCH}[lie]"),
    Fault("the object store loses what it was given", _NONE_OR_WHOLE, f"{_PACK}[lose]"),
    Fault(
        "the object store's lists are behind",
        "stale objects take room; nothing else changes",
        f"{_BYTES}::test_lists_that_are_behind_cost_room_and_nothing_else",
    ),
    # bytes, manifests, machines
    Fault(
        "a byte of the artifact is wrong",
        _NOTHING_OF_IT,
        f"{_FAILURES}"
        "::test_a_state_that_can_not_be_restored_is_given_up_and_the_workload_starts_anew",
    ),
    Fault(
        "a byte of the artifact on NVMe is wrong, and the object store has a copy",
        "the agent fetches the other copy, and the same process answers",
        f"{_COPIES}::test_it_goes_on_from_the_other_one",
    ),
    Fault(
        "a state that another pod is to continue from is damaged wherever it lies",
        "an event says so; the pod waits for a sound copy, in the end it is restarted or waits on",
        f"{_DAMAGED}::test_it_is_told_and_started_anew_in_the_end[successor]",
    ),
    Fault(
        "a raw file on NVMe has changed",
        "refused before anything is restored",
        f"{_VAULT}::TestSeal::test_raw_bytes_that_changed_are_not_restored_from",
    ),
    Fault(
        "a chunk in the store has changed",
        "refused, and never built upon",
        f"{_BYTES}::TestSpoiled::test_a_changed_chunk_is_corrupt_and_not_built_upon",
    ),
    Fault(
        "the manifest was changed",
        "refused",
        f"{_BYTES}::TestSpoiled::test_a_changed_manifest_is_refused",
    ),
    Fault(
        "the manifest is unsigned, or a stranger's",
        "refused",
        f"{_BYTES}::TestSpoiled::test_an_unsigned_and_a_strangers_manifest_are_refused",
    ),
    Fault(
        "the authority under which it was signed is known here no more",
        "kept and told; restored once its certificate is put back",
        f"{_WAITS}::test_a_state_whose_signers_authority_is_missing_waits_for_it[parked-nvme]",
    ),
    Fault(
        "the manifest is under another artifact's name",
        "refused",
        f"{_BYTES}::TestSpoiled::test_a_manifest_under_anothers_name_is_refused",
    ),
    # pods
    Fault(
        "the pod is deleted while it is on NVMe",
        "gone within 1.5 s; nobody listens at its gate any more",
        f"{_FAILURES}::test_a_seat_below_ram_ends_at_once[deleted-parked-nvme]",
    ),
    Fault(
        "the container is killed while its seat is restored",
        "gone within 1.5 s; what was back of its tree has not run",
        f"{_FAILURES}::test_a_seat_below_ram_ends_at_once[killed-restoring]",
    ),
    Fault(
        "a second pod wants to continue from the same state",
        "refused, told, and restarted: one successor runs",
        f"{_CLAIMS}::test_a_second_successor_is_refused_and_starts_anew",
    ),
    Fault(
        "nothing proves that the pod has stopped whose state another wants",
        "the successor waits; the registry grants no claim",
        f"{_CLAIMS}::test_nothing_is_claimed_while_the_other_may_run_on",
    ),
    Fault(
        "the agent is restarted while a seat succeeds to another's state",
        "continues with it",
        f"{_ADOPT}::test_an_agent_that_is_restarted_in_between_goes_on",
    ),
    Fault(
        "the container runtime is away when a successor's state is fetched",
        "an event says so; the agent fetches once the runtime answers",
        f"{_ADOPT}::test_what_can_not_be_told_of_its_container_is_asked_again[away-parked-object]",
    ),
    Fault(
        "a successor's container ends before it continues",
        "the next one does",
        f"{_CLAIMS}::test_one_whose_container_ends_before_it_goes_on_does_so_in_the_next",
    ),
    Fault(
        "CRIU is done with a restore, and the agent dies before the tree stands",
        "that half is ended, and nobody hears of it; restored again, its connections continue",
        f"{_HALVES}::test_its_connections_go_on_in_its_own_container",
    ),
    Fault(
        "a container ends while its pod has another's address for a restore",
        "the pod gives it back, if need be to the next agent",
        f"{_LOANS}::test_what_was_lent_goes_though_the_container_has_ended[True]",
    ),
    Fault(
        "the other agent is away when a move comes to nothing",
        "the agent, or the next one, tells it until it answers; then it drops what came there",
        f"{_CALL_OFFS}::test_the_next_agent_tells_it",
    ),
    Fault(
        "the agent dies once the other node keeps a state, and the workload continues here since",
        "nobody continues from that state",
        f"{_BEGUN_ANEW}::test_what_was_kept_there_is_nobodys_once_the_workload_has_gone_on_here",
    ),
    Fault(
        "the agent dies at any write of a move to other GPUs of its node",
        "the next one ends it: the successor continues, and nothing else has the state",
        f"{_WITHIN}::test_an_agent_killed_at_any_write[24-after]",
    ),
    Fault(
        "the agent dies once the successor has the state, and the workload has continued here",
        "nobody continues from that state",
        f"{_WITHIN}::test_what_was_handed_over_is_nobodys_once_the_workload_has_gone_on",
    ),
    Fault(
        "the container ends just then, and the agent dies, too",
        "the successor continues from the last state if the journal says so, else nobody does",
        f"{_WITHIN}::test_a_container_that_ends_when_its_state_is_handed_over",
    ),
    Fault(
        "the pod that was moved within its node is deleted before its successor runs",
        "the successor continues, also where `keep_left_s` is 0",
        "tests/unit/nodeagent/migration/test_within.py"
        "::test_the_state_outlives_the_pod_that_left_it",
    ),
    Fault(
        "a successor's pod goes while its state comes",
        "nothing of it is kept",
        f"{_COMING}::test_nothing_is_kept_for_a_pod_that_goes_before_it_is",
    ),
    Fault(
        "the other agent reads a large state for longer than a call may take",
        "asked again; it is read once",
        f"{_PEERS}::test_a_state_that_takes_longer_to_be_read_than_a_call_may_take[deliver]",
    ),
    Fault(
        "the node has another driver than when the seat went to NVMe",
        _KEEPS,
        f"{_OWN}[parked-nvme-driver]",
    ),
    Fault(
        "the node has another driver than when the seat went to the object store",
        _KEEPS,
        f"{_OWN}[parked-object-driver]",
    ),
    Fault(
        "the node has another GPU than when the seat went to NVMe",
        _KEEPS,
        f"{_OWN}[parked-nvme-gpu_product]",
    ),
    Fault(
        "the node of a successor that is parked on another's state gets another driver",
        _KEEPS,
        f"{_ADOPT}"
        "::test_a_successor_whose_node_gets_another_driver_keeps_the_state_until_it_has_the_old",
    ),
    Fault(
        "the pod is deleted meanwhile",
        "gone within 1.5 s",
        f"{_WAITS}::test_a_pod_that_is_deleted_while_it_waits_for_that_goes_at_once[driver]",
    ),
    Fault(
        "a pod is to continue from a state that was saved under another driver",
        _NOT_HERE,
        f"{_FOREIGN}[driver-570.1-on driver 580.95.05]",
    ),
    Fault(
        "a pod is to continue from a state that was saved on another GPU product",
        _NOT_HERE,
        f"{_FOREIGN}[gpu_product-NVIDIA A100-this node has NVIDIA A100]",
    ),
    Fault(
        "a pod is to continue from a state of another kernel",
        _NOT_HERE,
        f"{_FOREIGN}[kernel-7.0.1-this node runs 7.0.1]",
    ),
    Fault(
        "two nodes: kills, a registry that is away or whose answers are lost, rivals, full RAM",
        "one successor runs, the last copy stays, everybody is served",
        f"{_STORMS}::test_storms_over_two_nodes_find_nothing",
    ),
    Fault(
        "the agent is started without CRIU",
        "stays parked, told in an event (`CannotWake`)",
        f"{_KILLS}::test_an_agent_without_criu_says_that_it_can_not_wake_what_is_below_ram",
    ),
    Fault(
        "the journal is lost",
        "**restarted**; the artifact is kept for people",
        f"{_KILLS}::test_with_the_journal_lost_a_seat_below_ram_starts_anew",
    ),
    Fault(
        "the agent is killed within a dump of a seat of which a snapshot is kept",
        "the snapshot stays",
        f"{_KILLS}::test_a_save_game_outlives_an_agent_that_is_killed_in_a_later_dump",
    ),
    Fault(
        "the agent is killed within a pre-copy, or the eviction that follows it",
        "the pod is evicted; nothing of the pre-copy stays",
        f"{_PRECOPIES}::test_an_agent_killed_at_any_write_evicts_all_the_same[30-after]",
    ),
    Fault(
        "an eviction is called off while its pre-copy is sent",
        "the workload serves; nothing of the pre-copy stays",
        f"{_PRECOPIES}::"
        "test_an_eviction_that_is_cancelled_leaves_no_copy_and_the_seat_serves[is copied]",
    ),
)


def elsewhere() -> list[str]:
    """The tests of the rows that tests/faults doesn't hold, sorted: a file's come together."""
    named = {row.test for row in (*DEATHS, *BREAKAGES)}
    return sorted(test for test in named if not test.startswith("tests/faults/"))
