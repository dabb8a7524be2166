"""What depends on the kernel or on how many CLOSIDs there are."""

from __future__ import annotations

from tests.kernel.inside.resctrl.test_allocation import (
    test_closids_of_others_are_counted,
    test_groups_of_others_keep_their_ways,
    test_more_applications_than_closids_share,
    test_no_closid_is_left,
)
from tests.kernel.inside.resctrl.test_discovery import (
    test_it_is_mounted_once_and_unmounted_again,
    test_nothing_is_monitored,
    test_options_that_this_machine_has_not,
    test_what_is_offered,
)
from tests.kernel.inside.resctrl.test_moves import (
    test_a_vm_whose_threads_come_and_go_all_the_time,
    test_all_threads_and_no_others,
)
from tests.kernel.inside.resctrl.test_refusals import (
    test_a_group_that_was_removed,
    test_a_reason_of_an_earlier_command_is_not_taken_for_this_ones,
    test_a_thread_that_is_none,
    test_groups_where_there_are_none,
    test_the_last_closid,
    test_values,
    test_ways_of_an_exclusive_group,
)
from tests.kernel.inside.resctrl.test_table import subject, test_the_kernel_answers_as_it_did

__all__ = [
    "subject",
    "test_a_group_that_was_removed",
    "test_a_reason_of_an_earlier_command_is_not_taken_for_this_ones",
    "test_a_thread_that_is_none",
    "test_a_vm_whose_threads_come_and_go_all_the_time",
    "test_all_threads_and_no_others",
    "test_closids_of_others_are_counted",
    "test_groups_of_others_keep_their_ways",
    "test_groups_where_there_are_none",
    "test_it_is_mounted_once_and_unmounted_again",
    "test_more_applications_than_closids_share",
    "test_no_closid_is_left",
    "test_nothing_is_monitored",
    "test_options_that_this_machine_has_not",
    "test_the_kernel_answers_as_it_did",
    "test_the_last_closid",
    "test_values",
    "test_ways_of_an_exclusive_group",
    "test_what_is_offered",
]
