/* SPDX-License-Identifier: GPL-2.0 */
/* What the scheduler and the agent share. manager/bpf/__init__.py reads this file too: integers, and structs of u64. */
#ifndef EQUIPOISE_INTERFACE_H
#define EQUIPOISE_INTERFACE_H

#define MAX_WARP_NS 100000000 /* a larger warp acts like this one */

/* Value of equipoise_warps. Its key is a control group's id: the inode number of its directory. */
struct warp {
	u64 warp_ns;
	u64 limit_ns; /* of CPU time on borrowed time; 0: max_borrowed_ns */
};

/* Value of equipoise_stats, for each possible CPU. */
struct stats {
	u64 preemptions; /* a task that woke up took a CPU at once */
	u64 warped_preemptions; /* and would not have without its warp */
	u64 reevaluations; /* a decision was taken again when its time had come */
	u64 migrations;
	u64 borrowed_ns; /* CPU time that warped tasks ran ahead of their share */
	u64 limited; /* times that a task had used up its limit */
	u64 rescued; /* times that one had waited for max_wait_ns */
};

#endif
