"""llama-swap's router scenarios, as its tests of `internal/router` at commit 0bdb372 name them: for
each one a test of ours that shows the same of a box that parks, or why there is none.

What its fakes count as a stop is a park here, and what they count as a run is a start or a wake.
"""

from __future__ import annotations

import re

from images.cache import REPOSITORY

ROUTER = "tests/local/test_router.py"
SERVE = "tests/local/test_serve.py"
FRONT = "tests/unit/local/front/test_requests.py"
PROXY = "tests/unit/proxy/test_admission.py"
SWAP = "tests/unit/core/swap/test_swap.py"

HERE = {
    "base: RunningModels": f"{ROUTER} a_request_that_comes_while_its_model_ends_starts_it_again",
    "base: UnloadAll, UnloadSpecificModel": f"{ROUTER} unload_ends_models_and_the_next_request",
    "base: UnloadSpecificModelUsesConfiguredTimeout, UnloadAllUsesConfiguredTimeouts": (
        f"{ROUTER} models_that_heed_no_term_end_together_each_after_its_own_time"
    ),
    "base: Unload_StopsInParallel, UnloadZeroStopsSameTimeoutInParallel": (
        f"{ROUTER} models_that_heed_no_term_end_together_each_after_its_own_time"
    ),
    "base: OnDemandStart": f"{ROUTER} requests_for_a_model_that_does_not_run_start_it_once",
    "base: IgnoreWebsocketsRejectsModelUnlessReady, IgnoreWebsocketsDoesNotBlockSwap": (
        f"{FRONT} a_websocket_that_counts_for_nothing"
    ),
    "base: WebsocketStartsModelWhenCompatDisabled": (
        f"{FRONT} a_websocket_wakes_its_model_and_passes_both_ways"
    ),
    "base: RequestDuringStop": (
        f"{ROUTER} a_request_that_comes_while_its_model_ends_starts_it_again"
    ),
    "base: ContextCancel": f"{ROUTER} who_leaves_while_a_model_starts_is_served_nothing",
    "base: ModelNotFound": f"{ROUTER} a_name_of_no_model_is_answered_404_and_starts_nothing",
    "base: ConcurrencyLimitRejectsBeforeLoadingStream": (
        f"{ROUTER} who_waits_counts_for_the_limit_of_a_model"
    ),
    "base: Shutdown_StopsAllProcesses": f"{SERVE} term_ends_all_models_parked_ones_too",
    "group: NewGroup_DuplicateMembership": (
        "tests/unit/api/models/test_reading.py a_file_that_is_wrong_as_a_whole"
    ),
    "group: ServeHTTP_SwapStopsPrevious": (f"{SERVE} requests_swap_two_models_whose_state_is_kept"),
    "group: NonSwapGroup_NoStop, NonExclusiveDoesNotUnloadExclusive": (
        f"{SERVE} models_that_fit_are_active_beside_each_other"
    ),
    "group: CrossGroupNonExclusiveParallel": f"{ROUTER} models_that_fit_start_at_the_same_time",
    "group: SameGroupSwapSerialises": f"{ROUTER} requests_for_two_models_at_once",
    "group: PersistentNotEvicted": f"{ROUTER} a_pinned_group_of_llama_swaps_file_stays",
    "matrix: CoexistInSet": f"{SERVE} models_that_fit_are_active_beside_each_other",
    "matrix: CoexistingSetParallel": f"{ROUTER} models_that_fit_start_at_the_same_time",
    "matrix: SwapEvictsConflicting, IncompatibleQueues": (
        f"{ROUTER} requests_for_two_models_at_once"
    ),
    "fifo: SendAdmission_CancelledContextWins, OnCancel_QueuedRequest, OnCancel_SwapWaiter": (
        f"{ROUTER} who_leaves_while_a_model_starts_is_served_nothing"
    ),
    "fifo: FastPath": f"{PROXY} a_granted_seat_is_served_at_once_under_its_generation",
    "fifo: ModelNotFound": f"{PROXY} an_unknown_model_is_refused_and_the_known_ones_are_not_told",
    "fifo: OnDemandStartThenServe": f"{PROXY} the_first_waiting_request_is_reported_at_once",
    "fifo: JoinInFlightSwap": f"{ROUTER} requests_for_a_model_that_does_not_run_start_it_once",
    "fifo: SwapDoneError_FailsAllWaiters": (
        "tests/local/test_acts.py a_command_that_can_not_serve_is_told_at_once"
    ),
    "fifo: QueueOnEvictionCollision, NoSwapWhileServing": (
        f"{FRONT} requests_swap_models_and_wait_for_those_in_flight"
    ),
    "fifo: DisjointSwapsRunInParallel": f"{SERVE} models_of_two_gpus_do_not_hinder_each_other",
    "fifo: OverlappingEvictSetsDoNotRunInParallel": (
        f"{SWAP} demand_behind_a_start_lets_requests_pass_but_no_further_start"
    ),
    "fifo: QueueDrainPromotesMultiple": f"{SWAP} two_slots_share_by_declared_memory",
    "fifo: QueueCollation": f"{ROUTER} requests_for_two_models_at_once",
    "fifo: GrantServeFalseDoesNotLeakInFlight": (
        f"{PROXY} a_request_that_left_lowers_the_demand_and_is_not_served"
    ),
    "fifo: OnShutdown_FailsAllWaiters": f"{ROUTER} the_end_of_a_box_answers_who_waits",
    "fifo: PriorityQueueOrder": f"{SWAP} priority_goes_before_age",
    "fifo: OnCancel_NotPresent": (
        "tests/unit/proxy/test_app.py a_client_that_leaves_in_mid_answer_is_told_to_the_model"
    ),
    "fifo: ConcurrencyLimit_RejectsOverLimit, ConcurrencyLimit_CustomLimit": (
        f"{FRONT} a_model_takes_so_many_requests_at_once"
    ),
    "fifo: ConcurrencyLimit_SwapWaiters, ConcurrencyLimit_QueuedWaitersReserveCapacity, "
    "ConcurrencyLimit_CancelledQueuedWaiterReleasesReservation": (
        f"{ROUTER} who_waits_counts_for_the_limit_of_a_model"
    ),
}
"""By scenario: the file of ours, and how the test's name goes on after `test_`."""

NOT_HERE = {
    "base: UnloadStopsSmallestTimeoutFirst": "all end at once: whoever takes long holds up nobody",
    "base: UnloadPositiveTimeoutOverridesConfigured": "no call of the API names a time",
    "group: CrossGroupExclusive": "memory says who is parked for whom: what fits stays",
    "matrix: MatrixSolver_TieBreakDefinitionOrder, MatrixSolver_EvictCostsPreferred": (
        "the key matrix is not read, and a warning says so"
    ),
    "loading: all ten": "a woken model needs no loading messages; its SSE comments say who waits",
    "peer: all twenty": "the key peers is not read, and a warning says so",
    "fifo: SendAdmission_NilAdmitPreservesExistingBehavior, ReleaseWithoutReservationPanics": (
        "of its own code alone"
    ),
    "fifo: GrantSetsPriorityMetadata": "no header tells a client of its priority",
    "fifo: OnUnload_ReleasesActiveWaiters, OnUnload_DropsQueuedRequests": (
        "who waits is answered by the next start: see base: RequestDuringStop"
    ),
    "fifo: ConcurrencyLimit_DefaultIsTen": "0 is no limit; box-api.md says so",
}
COUNT = {"base": 18, "group": 8, "loading": 10, "matrix": 6, "peer": 20, "fifo": 29}
"""Of its tests, by file."""
ALL = {"all ten": 10, "all twenty": 20}


def test_each_scenario_is_told_once() -> None:
    told = [
        (row.partition(": ")[0], name)
        for row in (*HERE, *NOT_HERE)
        for name in row.partition(": ")[2].split(", ")
    ]
    assert len(told) == len(set(told))
    counted = dict.fromkeys(COUNT, 0)
    for file, name in told:
        counted[file] += ALL.get(name, 1)
    assert counted == COUNT


def test_each_of_ours_is_there() -> None:
    for said in HERE.values():
        file, _, name = said.partition(" ")
        text = (REPOSITORY / file).read_text()
        assert re.search(rf"^(async )?def test_{name}", text, re.MULTILINE), said
