/* SPDX-License-Identifier: GPL-2.0 */
/* Where connections are: rows of places in an array, as in a cache of a few ways. Which row is a connection's, and which place
 * it likes best, parts of its hash say, and its tag is another. So it is found, or not, by looking at one line of the cache,
 * and nothing is held but to put another one into a row.
 */
#ifndef EQUIPOISE_ROWS_H
#define EQUIPOISE_ROWS_H

/* Parts of a hash: a tag in the lower half, then where to look first, and the row. */
#define LIKED_SHIFT 32
#define ROW_SHIFT 50

static struct row *row_of(u64 hash)
{
	u32 number = (u32)(hash >> ROW_SHIFT) & (MOST_ROWS - 1);

	return bpf_map_lookup_elem(&tap_connections, &number);
}

static u32 tag_of(u64 hash)
{
	return (u32)hash | 1;
}

static u32 liked(u64 hash)
{
	return (u32)(hash >> LIKED_SHIFT & 0xffff) * MOST_IN_ROW >> 16;
}

/* By other bits of the hash than the row: else some rows would be full and others empty. */
static bool chosen(u32 tag, u32 halved)
{
	return !(tag >> 1 & ((1u << halved) - 1));
}

static bool has(const struct row *row, u32 place, u32 tag, const struct segment *segment)
{
	return place < MOST_IN_ROW && row->tags[place] == tag && is_same(&row->places[place].key, &segment->key);
}

static u32 look_everywhere(const struct row *row, u32 tag, const struct segment *segment)
{
	u32 place = 0;

#pragma clang loop unroll(disable)
	while (place < MOST_IN_ROW && !has(row, place, tag, segment))
		place++;
	return place;
}

/* The place of a connection, MOST_IN_ROW: it has none. The verifier looks at it once. */
__attribute__((noinline)) int find(struct row *row, const struct segment *segment)
{
	u32 place, tag;

	if (!row || !segment)
		return MOST_IN_ROW;
	tag = tag_of(segment->hash);
	place = liked(segment->hash);
	if (!has(row, place, tag, segment))
		place = look_everywhere(row, tag, segment);
	if (place >= MOST_IN_ROW)
		return MOST_IN_ROW;
	if (!(row->used >> place & 1))
		row->used |= 1u << place;
	return (int)place;
}

static struct connection *connection_at(struct row *row, u64 place)
{
	asm volatile("" : "+r"(place)); /* the verifier must see its range where it is used */
	if (place >= MOST_IN_ROW)
		return NULL;
	asm volatile("" : "+r"(place)); /* and not before */
	return &row->places[place];
}

/* The one that it likes best, if that is free, else a free one, else one that was not used lately. */
static u32 choose_place(struct row *row, u64 hash)
{
	u32 place = liked(hash);

	if (place < MOST_IN_ROW && !row->tags[place])
		return place;
#pragma clang loop unroll(disable)
	for (place = 0; place < MOST_IN_ROW; place++)
		if (!row->tags[place])
			return place;
#pragma clang loop unroll(disable)
	for (place = 0; place < MOST_IN_ROW; place++)
		if (!(row->used >> place & 1))
			return place;
	row->used = 0;
	return liked(hash);
}

static void put(struct row *row, u64 place, const struct segment *segment)
{
	struct connection *connection = &row->places[place];

	store(&row->tags[place], 0);
	__builtin_memset(connection, 0, sizeof(*connection));
	connection->key = segment->key;
	row->used |= 1u << place;
	store(&row->tags[place], tag_of(segment->hash));
}

/* A place for a connection that has none; MOST_IN_ROW: another CPU is about to put one into the row. */
__attribute__((noinline)) int insert(struct row *row, const struct segment *segment)
{
	u64 place;

	if (!row || !segment || __sync_lock_test_and_set(&row->busy, 1))
		return MOST_IN_ROW;
	place = find(row, segment);
	if (place >= MOST_IN_ROW) { /* else another CPU was first */
		place = choose_place(row, segment->hash);
		asm volatile("" : "+r"(place)); /* the verifier must see its range where it is used */
		if (place < MOST_IN_ROW)
			put(row, place, segment);
	}
	store(&row->busy, 0);
	return (int)place;
}

/* Unless another connection has it meanwhile. */
static void leave_place(struct row *row, u64 place, const struct segment *segment)
{
	asm volatile("" : "+r"(place));
	if (place < MOST_IN_ROW)
		__sync_val_compare_and_swap(&row->tags[place], tag_of(segment->hash), 0);
}

#endif
