/* SPDX-License-Identifier: GPL-2.0 */
/* The few types of the kernel that the scheduler uses, with the few members that it uses: where they lie is found when
 * it is loaded (CO-RE). So it builds without a header of 140,000 lines, and into the same code whatever that says
 * today.
 */
#ifndef EQUIPOISE_KERNEL_H
#define EQUIPOISE_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;

#define ENOMEM 12
#define E2BIG 7
#define CLOCK_MONOTONIC 1
#define SCHED_IDLE 5
#define PF_KTHREAD 0x00200000

/* include/linux/sched/ext.h and kernel/sched/ext: part of the interface, so that they may be used as numbers */
#define SCX_DSQ_LOCAL 0x8000000000000002ULL
#define SCX_DSQ_LOCAL_ON 0xc000000000000000ULL
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_KICK_IDLE 1ULL
#define SCX_KICK_PREEMPT 2ULL
#define SCX_TASK_QUEUED 1

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	u64 id;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

enum cgroup_subsys_id {
	cpu_cgrp_id = 1,
	CGROUP_SUBSYS_COUNT = 14,
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	struct cgroup_subsys_state *subsys[CGROUP_SUBSYS_COUNT];
};

struct task_group {
	struct cgroup_subsys_state css;
	unsigned long shares;
	struct task_group *parent;
};

struct cpumask {
	unsigned long bits[1];
};

struct sched_entity {
	u64 sum_exec_runtime;
};

struct sched_ext_entity {
	u32 flags;
	u64 slice;
	u64 dsq_vtime;
};

struct task_struct {
	unsigned int flags;
	int static_prio;
	struct sched_entity se;
	struct sched_ext_entity scx;
	unsigned int policy;
	int nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	struct task_group *sched_task_group;
};

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup;
};

struct scx_cgroup_init_args {
	u32 weight;
};

#pragma clang attribute pop

struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));

struct bpf_iter_scx_dsq {
	u64 opaque[6];
} __attribute__((aligned(8)));

/* Members are matched with the kernel's by their names. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	s32 (*cgroup_init)(struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	void (*cgroup_exit)(struct cgroup *cgrp);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	void (*cgroup_set_weight)(struct cgroup *cgrp, u32 weight);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	s32 (*init)(void);
	u32 timeout_ms;
	char name[128];
};

#define BPF_FOR_EACH_ITER (&___it) /* of bpf_for_each */

#define __ksym_ __attribute__((section(".ksyms"))) __attribute__((weak))

extern u32 bpf_cpumask_first(const struct cpumask *cpumask) __ksym_;
extern bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym_;
extern u32 bpf_cpumask_weight(const struct cpumask *cpumask) __ksym_;
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym_;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym_;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym_;
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym_;
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym_;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym_;
extern s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym_;
extern void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym_;
extern void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime, u64 enq_flags) __ksym_;
extern bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id, u64 flags) __ksym_;
extern bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym_;
extern s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym_;
extern const struct cpumask *scx_bpf_get_online_cpumask(void) __ksym_;
extern void scx_bpf_put_cpumask(const struct cpumask *cpumask) __ksym_;
extern void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym_;
extern u64 scx_bpf_now(void) __ksym_;
extern u32 scx_bpf_nr_cpu_ids(void) __ksym_;
extern s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags) __ksym_;
extern s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle) __ksym_;
extern s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym_;
extern bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym_; /* not in the first kernels */

#endif
