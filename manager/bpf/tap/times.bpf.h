/* SPDX-License-Identifier: GPL-2.0 */
/* The bucket of a response time. Buckets grow geometrically, so the logarithm tells which one it is, or that it is the next:
 * one bound decides, where a search would wait for one line of the cache after another.
 */
#ifndef EQUIPOISE_TIMES_H
#define EQUIPOISE_TIMES_H

/* To the base of 2, with 16 bits behind the point: log2(1 + f) is f + f * (1 - f) / 3, but for 0.01. That is a third of a
 * bucket too little at most, and a fifth too much.
 */
static __always_inline u64 logarithm(u64 time_ns)
{
	u64 exponent = 63, fraction;

#pragma clang loop unroll(full)
	for (u32 bits = 32; bits; bits /= 2) {
		if (!(time_ns >> (64 - bits))) {
			time_ns <<= bits;
			exponent -= bits;
		}
	}
	fraction = time_ns >> 47 & 0xffff;
	return (exponent << 16) + fraction + (fraction * (0x10000 - fraction) / 3 >> 16);
}

/* The first one whose upper bound is not less; the last one takes all that is longer. */
static __always_inline u32 find_bucket(u64 time_ns)
{
	u64 bucket;

	if (time_ns <= SHORTEST_NS)
		return FIRST_BUCKET;
	bucket = (logarithm(time_ns) - SHORTEST_LOGARITHM) * BUCKETS_PER_DOUBLING; /* with 32 bits behind the point */
	bucket = (bucket + (2ULL << 32) / 3) >> 32; /* rounded up, less that third: the one, or that before it */
	if (bucket >= BUCKETS - 1)
		return FIRST_BUCKET + BUCKETS - 1;
	return FIRST_BUCKET + (u32)bucket + (time_ns > upper_bound_ns[bucket]);
}

#endif
