// SPDX-License-Identifier: GPL-2.0
/* Response times of the services in a VM, from the packets at its tap.
 *
 * A response time is the time from the last byte of a request, which passes the tap on its way to the guest (egress of
 * the tap), to the first byte of the answer, which comes out of the guest (ingress). All that passes is let through as
 * it is, and nothing of its content is kept.
 *
 * Client and guest take turns on a connection: what the client sends until the guest answers is one request. Where the
 * first bytes show a known protocol, a request that begins before the answer to the one before shows that the client
 * pipelines. In memcached's binary protocol, answers then say whose they are. In HTTP/1 and memcached's text protocol they
 * come in the order of the requests, which is kept where the beginning of a connection was seen (order.bpf.h). All other
 * such connections are counted and not timed, because TCP does not tell which answer is whose, until the guest had the
 * last word and both were silent for a while. HTTP/2 is never matched.
 *
 * Several CPUs may handle packets of one connection at once, and there is no lock. What decides is taken back
 * atomically: in a race a request is counted as untimed or not at all, or its time off by the length of the race, and
 * never timed by when another one was asked.
 *
 * Where there are more connections than there is room for, a part of them is looked at, chosen by a hash, and each
 * counts for as many as it stands for.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;

#include "tap.h"
#include "buckets.h"
#include "times.bpf.h"

#define SELDOM(what) __builtin_expect(what, false) /* its code is put behind that of most packets */
#define PASS (-1) /* TCX_NEXT, TC_ACT_UNSPEC: whatever comes next decides */

#define ETHERNET_BYTES 14
#define VLAN_BYTES 4
#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define TCP_BYTES 20
#define MOST_TAGS 2
#define PROTOCOL_TCP 6

/* Extension headers of IPv6: RFC 8200, 4. The first two bytes: what follows, and its own length. */
#define MOST_EXTENSIONS 4
#define EXTENSION_BYTES 8
#define HOP_BY_HOP 0
#define ROUTING 43
#define DESTINATION 60
#define MORE_OR_LATER_FRAGMENT 0x3fff

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10

#define OUTGOING 4 /* __sk_buff.pkt_type: PACKET_OUTGOING */
#define NS_PER_S 1000000000ULL
#define TICK_SHIFT 20 /* a tick is 2^20 ns */
#define SILENT_TICKS ((u32)(SILENT_S * NS_PER_S >> TICK_SHIFT) + 1)

#define FIRST_EPHEMERAL 32768 /* net.ipv4.ip_local_port_range of Linux */
#define HEAD_BYTES 16

/* Records of TLS: RFC 8446, 5.1. A header of 5 bytes: type, version, length. */
#define RECORD_CIPHER 0x14
#define RECORD_HANDSHAKE 0x16
#define RECORD_DATA 0x17
#define RECORD_BYTES 5
#define CIPHER_BYTES 6 /* of a whole one */
#define CLIENT_HELLO 1
#define ALERT_BYTES 0x13 /* a record of an encrypted alert: 2, its true type, a tag of 16 */
#define SHA256_FINISHED 0x35 /* one of an encrypted Finished: 4, the hash, its true type, the tag */
#define SHA384_FINISHED 0x45
#define LINE_BYTES 128

/* Messages of memcached's binary protocol: a header, whose first 16 bytes have the magic number, the opcode, the length
 * of what follows it at 8, and at 12 a number that the client chooses and the answer repeats.
 */
#define MESSAGE_BYTES 24
#define MAGIC_ANSWER 0x81
#define MOST_BODY_BYTES (1u << 30)

struct address {
	u32 words[4]; /* IPv4: the last one */
};

struct connection_key {
	u32 interface;
	u16 guest_port;
	u16 client_port;
	struct address guest;
	struct address client;
} __attribute__((aligned(8)));

struct request {
	u64 asked_ns; /* when its last byte passed */
	u32 waiting; /* for its answer: 0 or 1, taken back atomically, so that it is counted once */
	u32 opaque; /* of memcached's binary protocol */
};

/* How answers are matched with requests. */
#define BY_TURNS 0
#define BY_OPAQUE 1 /* as the answers say */
#define UNTIMED 2 /* whose answer is whose cannot be told */
#define BY_ORDER 3 /* order.bpf.h */

/* Two lines of the cache; what count_waiting reads of most lies in the first one. */
struct connection {
	struct connection_key key;
	struct request requests[MOST_REQUESTS]; /* only the first one, unless matched BY_OPAQUE */
	u32 asked_end; /* the sequence number after the latest request, once the first one has a time */
	u32 answered_end; /* that after what the guest has sent */
	u32 answered_ticks; /* when it last sent an answer or, unless matched BY_TURNS, anything new; 0: never */
	union {
		u32 next_answer; /* BY_OPAQUE: where one begins, by its sequence number */
		u32 order; /* BY_ORDER: the ticket of its order */
	};
	u8 protocol;
	u8 matched;
	u8 latest; /* of the requests; MOST_REQUESTS: one that is not timed */
	u8 answered; /* answered_end is known */
	u8 framed; /* next_answer is known */
	u8 turns; /* up to 1 */
	u8 finished; /* of TLS: the client has ended its handshake */
	u8 pipelines; /* HTTP or memcached's text, at least once */
};

/* That of the latest connection in a row. Its tag and the sequence number tell it from others: 63 bits, of which nobody
 * knows those of the tag.
 */
struct handshake {
	u32 busy; /* a CPU looks at it */
	u32 tag;
	u32 sequence; /* of the SYN: one that is sent again has the same */
	u32 answers; /* the sequence number of the guest's first byte, once it accepted: begun_ns is 0 then */
	u64 begun_ns;
};

/* Where connections are, by a part of their hash. All that a packet needs of a connection lies in one row, which is in one
 * page, and all that tells whether a row has it in one line of the cache.
 */
struct row {
	struct handshake handshake;
	u32 tags[MOST_IN_ROW]; /* 0: the place is free */
	u32 busy; /* a CPU puts another connection into it */
	u32 used; /* places that were, one bit each; of those that were not, one is forgotten for another */
	u32 unused;
	u64 further[8];
	struct connection places[MOST_IN_ROW];
};
_Static_assert(sizeof(struct row) == 1024, "rows lie in whole pages, and what they have in whole lines of the cache");

struct segment {
	struct connection_key key;
	u32 sequence;
	u32 length; /* of its payload */
	u32 offset; /* of its payload in the packet */
	u32 acknowledged; /* of a SYN with an ACK */
	u8 flags;
	u32 weight; /* how many it stands for */
	u64 now_ns; /* when it passed, where that matters */
	u64 hash; /* of the connection */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_SERVICES);
	__type(key, struct service_key);
	__type(value, struct service);
} tap_services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_SERVICES);
	__type(key, u32);
	__type(value, u32);
} tap_interfaces SEC(".maps");

/* In whole pages, for which the flag is there: nobody maps it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MOST_ROWS);
	__type(key, u32);
	__type(value, struct row);
} tap_connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct settings);
} tap_settings SEC(".maps");

/* How many requests waited how long when count_waiting last looked, by bucket; the reader empties it before. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_WAITING);
	__type(key, struct service_key);
	__type(value, u64);
} tap_waiting SEC(".maps");

/* How many response times were in each bucket; buckets of which there are none take no memory. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_TIMES);
	__type(key, struct service_key);
	__type(value, u64);
} tap_times SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct lost);
} tap_lost SEC(".maps");

/* Counters are few and those of one service seldom counted by two CPUs at once; per CPU, reading them would take longer
 * the more CPUs there are.
 */
static void add(u64 *count, u64 more)
{
	__sync_fetch_and_add(count, more);
}

/* After all that was stored before, which x86 keeps in its order. */
static void store(u32 *where, u32 what)
{
	asm volatile("" ::: "memory");
	*(volatile u32 *)where = what;
}

static struct lost *lost(void)
{
	u32 only = 0;

	return bpf_map_lookup_elem(&tap_lost, &only);
}

static struct settings *settings(void)
{
	u32 only = 0;

	return bpf_map_lookup_elem(&tap_settings, &only);
}

static u32 halvings(void)
{
	struct settings *set = settings();

	if (!set)
		return 0;
	return set->halvings < MOST_HALVINGS ? (u32)set->halvings : MOST_HALVINGS;
}

/* Of a connection: by it those that are looked at are chosen, and all have their places. Nobody outside knows the seed, so
 * that nobody can have another's place. Each step is murmur3's finaliser, in part.
 */
static u64 hash_of(const struct connection_key *key)
{
	const u64 *words = (const u64 *)key;
	struct settings *set = settings();
	u64 hash = set ? set->seed : 0;

	for (u32 word = 0; word < sizeof(*key) / sizeof(u64); word++) {
		hash = (hash ^ words[word]) * 0xff51afd7ed558ccdULL;
		hash ^= hash >> 33;
	}
	hash *= 0xc4ceb9fe1a85ec53ULL;
	return hash ^ hash >> 32;
}

static bool is_same(const struct connection_key *one, const struct connection_key *other)
{
	const u64 *words = (const u64 *)one, *others = (const u64 *)other;
	u64 differ = 0;

	for (u32 word = 0; word < sizeof(*one) / sizeof(u64); word++)
		differ |= words[word] ^ others[word];
	return !differ;
}

#include "rows.bpf.h"

/* The payload's place follows from the headers' lengths; Ethernet may pad what is shorter than 60 bytes. ``at``: TCP's. */
static bool parse_tcp(const u8 header[TCP_BYTES], u32 at, u32 ip_length, struct segment *segment, bool to_guest)
{
	u32 header_length = (header[12] >> 4) * 4;
	u16 source = (u16)(header[0] << 8 | header[1]), destination = (u16)(header[2] << 8 | header[3]);

	if (header_length < TCP_BYTES || header_length > ip_length)
		return false;
	segment->key.guest_port = to_guest ? destination : source;
	segment->key.client_port = to_guest ? source : destination;
	segment->sequence = (u32)header[4] << 24 | (u32)header[5] << 16 | (u32)header[6] << 8 | header[7];
	segment->flags = header[13];
	if (segment->flags & SYN)
		segment->acknowledged = (u32)header[8] << 24 | (u32)header[9] << 16 | (u32)header[10] << 8 | header[11];
	segment->offset = at + header_length;
	segment->length = ip_length - header_length;
	return true;
}

static bool parse_ipv4(struct __sk_buff *skb, u32 at, u8 header[IPV6_BYTES], struct segment *segment, bool to_guest)
{
	u32 header_length = (header[0] & 0xf) * 4, total = (u32)header[2] << 8 | header[3];
	u32 source, destination;

	if (!total) /* larger than 64 KiB: BIG TCP */
		total = skb->len - at;
	if (header[9] != PROTOCOL_TCP || header_length < IPV4_BYTES || total < header_length || total > skb->len - at)
		return false;
	if (((header[6] << 8 | header[7]) & MORE_OR_LATER_FRAGMENT) != 0)
		return false;
	__builtin_memcpy(&source, header + 12, sizeof(source));
	__builtin_memcpy(&destination, header + 16, sizeof(destination));
	segment->key.guest.words[3] = to_guest ? destination : source;
	segment->key.client.words[3] = to_guest ? source : destination;
	at += header_length;
	if (header_length > IPV4_BYTES && bpf_skb_load_bytes(skb, at, header + IPV4_BYTES, TCP_BYTES))
		return false;
	return parse_tcp(header + IPV4_BYTES, at, total - header_length, segment, to_guest);
}

/* The place of TCP behind the extension headers, 0 where it is not found; ``length`` becomes that of what is left. Packets
 * on their way to a further station of a routing header are not the guest's own, and fragments not told apart.
 */
static u32 past_extensions(struct __sk_buff *skb, u32 at, u8 kind, u32 *length)
{
	u8 extension[4];

	for (int passed = 0; passed < MOST_EXTENSIONS && kind != PROTOCOL_TCP; passed++) {
		u32 size;

		if (kind != HOP_BY_HOP && kind != ROUTING && kind != DESTINATION)
			return 0;
		if (bpf_skb_load_bytes(skb, at, extension, sizeof(extension)) || (kind == ROUTING && extension[3]))
			return 0;
		size = (extension[1] + 1) * EXTENSION_BYTES;
		if (size > *length)
			return 0;
		kind = extension[0];
		*length -= size;
		at += size;
	}
	return kind == PROTOCOL_TCP ? at : 0;
}

static bool parse_ipv6(struct __sk_buff *skb, u32 at, u8 header[IPV6_BYTES], struct segment *segment, bool to_guest)
{
	u32 length = (u32)header[4] << 8 | header[5];

	at += IPV6_BYTES;
	if (!length) /* larger than 64 KiB: BIG TCP */
		length = skb->len - at;
	if (length > skb->len - at)
		return false;
	__builtin_memcpy(to_guest ? &segment->key.client : &segment->key.guest, header + 8, sizeof(struct address));
	__builtin_memcpy(to_guest ? &segment->key.guest : &segment->key.client, header + 24, sizeof(struct address));
	at = past_extensions(skb, at, header[6], &length);
	return at && !bpf_skb_load_bytes(skb, at, header, TCP_BYTES) &&
	       parse_tcp(header, at, length, segment, to_guest);
}

/* IPv4 and TCP without options are as long as IPv6: what is most frequent is loaded at once. */
static bool parse(struct __sk_buff *skb, struct segment *segment, bool to_guest)
{
	u8 frame[ETHERNET_BYTES + IPV6_BYTES];
	u8 *header = frame + ETHERNET_BYTES;
	u32 tags = 0;
	u16 type;

	for (;;) {
		if (bpf_skb_load_bytes(skb, tags * VLAN_BYTES, frame, sizeof(frame)))
			return false;
		type = (u16)(frame[ETHERNET_BYTES - 2] << 8 | frame[ETHERNET_BYTES - 1]);
		if (tags == MOST_TAGS || (type != 0x8100 && type != 0x88a8))
			break;
		tags++;
	}
	segment->key.interface = skb->ifindex;
	if (type == 0x0800)
		return parse_ipv4(skb, ETHERNET_BYTES + tags * VLAN_BYTES, header, segment, to_guest);
	if (type == 0x86dd)
		return parse_ipv6(skb, ETHERNET_BYTES + tags * VLAN_BYTES, header, segment, to_guest);
	return false;
}

/* The first bytes of a segment's payload, with zeros behind. */
static void load_head(struct __sk_buff *skb, const struct segment *segment, u8 head[HEAD_BYTES])
{
	if (segment->length >= HEAD_BYTES)
		bpf_skb_load_bytes(skb, segment->offset, head, HEAD_BYTES);
	else if (segment->length >= 4)
		bpf_skb_load_bytes(skb, segment->offset, head, 4);
	else if (segment->length >= 1)
		bpf_skb_load_bytes(skb, segment->offset, head, 1);
}

static u32 four(const u8 *text)
{
	return (u32)text[0] << 24 | (u32)text[1] << 16 | (u32)text[2] << 8 | text[3];
}

#define FOUR(a, b, c, d) ((u32)(a) << 24 | (u32)(b) << 16 | (u32)(c) << 8 | (u32)(d))

/* The methods of HTTP, by their first letters. */
#define METHODS                                                                                                        \
	FOUR('G', 'E', 'T', ' ') : case FOUR('H', 'E', 'A', 'D'):                                                      \
	case FOUR('P', 'O', 'S', 'T'):                                                                                 \
	case FOUR('P', 'U', 'T', ' '):                                                                                 \
	case FOUR('D', 'E', 'L', 'E'):                                                                                 \
	case FOUR('O', 'P', 'T', 'I'):                                                                                 \
	case FOUR('P', 'A', 'T', 'C'):                                                                                 \
	case FOUR('C', 'O', 'N', 'N'):                                                                                 \
	case FOUR('T', 'R', 'A', 'C')

/* Of a request by its first eight bytes; OTHER: none that is known. The verifier looks at it once. */
__attribute__((noinline)) int protocol_of(u64 bytes)
{
	u32 first = bytes >> 32;
	u8 letters[] = { bytes >> 56, bytes >> 48, bytes >> 40 };
	u8 fifth = bytes >> 24, sixth = bytes >> 16;

	switch (first) {
	case METHODS:
		return HTTP;
	case FOUR('P', 'R', 'I', ' '):
		return HTTP2;
	case FOUR('g', 'e', 't', ' '):
	case FOUR('g', 'e', 't', 's'):
	case FOUR('g', 'a', 't', ' '):
	case FOUR('g', 'a', 't', 's'):
	case FOUR('s', 'e', 't', ' '):
	case FOUR('a', 'd', 'd', ' '):
	case FOUR('c', 'a', 's', ' '):
	case FOUR('r', 'e', 'p', 'l'):
	case FOUR('a', 'p', 'p', 'e'):
	case FOUR('p', 'r', 'e', 'p'):
	case FOUR('i', 'n', 'c', 'r'):
	case FOUR('d', 'e', 'c', 'r'):
	case FOUR('d', 'e', 'l', 'e'):
	case FOUR('t', 'o', 'u', 'c'):
	case FOUR('s', 't', 'a', 't'):
	case FOUR('v', 'e', 'r', 's'):
	case FOUR('f', 'l', 'u', 's'):
		return MEMCACHED;
	}
	if (letters[0] == 'm' && (letters[2] == ' ' || letters[2] == '\r')) {
		switch (letters[1]) {
		case 'g':
		case 's':
		case 'd':
		case 'a':
		case 'n':
			return MEMCACHED; /* its meta commands */
		}
	}
	if (letters[0] == 0x80 && letters[1] <= 0x40 && fifth <= 40 && !sixth)
		return MEMCACHED_BINARY; /* a magic number, the opcode, length of the extras, a type that is always 0 */
	if (letters[0] >= 0x14 && letters[0] <= 0x18 && letters[1] == 0x03 && letters[2] <= 0x04)
		return TLS;
	return OTHER;
}

static u8 recognise(const u8 head[HEAD_BYTES])
{
	return (u8)protocol_of((u64)four(head) << 32 | four(head + 4));
}

static bool begins_message(u8 protocol)
{
	return protocol == HTTP || protocol == MEMCACHED || protocol == MEMCACHED_BINARY;
}

/* Whether an answer says that the server failed: an HTTP status of 500 and more, memcached's SERVER_ERROR, or its
 * binary status of no memory, busy, or internal error.
 */
static bool is_error(const u8 head[HEAD_BYTES], u8 protocol)
{
	if (protocol == HTTP)
		return four(head) == FOUR('H', 'T', 'T', 'P') && head[9] == '5';
	if (protocol == MEMCACHED)
		return four(head) == FOUR('S', 'E', 'R', 'V');
	return protocol == MEMCACHED_BINARY && head[0] == 0x81 && !head[6] && head[7] >= 0x82 && head[7] <= 0x86;
}

/* The verifier looks at it once. */
__attribute__((noinline)) int bucket_of(u64 time_ns)
{
	return (int)find_bucket(time_ns);
}

/* Not static: the verifier looks at it once, and not for every way that leads here. */
__attribute__((noinline)) int count_in_bucket(u32 interface, u32 port, u64 time_ns, u32 kind, u64 weight)
{
	struct service_key key = {
		.interface = interface,
		.port = (u16)port,
		.bucket = (u16)(kind | find_bucket(time_ns)),
	};
	u64 *count = bpf_map_lookup_elem(&tap_times, &key);

	if (!count && bpf_map_update_elem(&tap_times, &key, &weight, BPF_NOEXIST)) {
		struct lost *all = lost();

		count = bpf_map_lookup_elem(&tap_times, &key); /* another CPU was first */
		if (count)
			add(count, weight);
		else if (all)
			add(&all->times, 1);
	} else if (count) {
		add(count, weight);
	}
	return 0;
}

static void count_time(const struct segment *segment, u64 time_ns, u16 kind, u64 weight)
{
	count_in_bucket(segment->key.interface, segment->key.guest_port, time_ns, kind, weight);
}

static struct service *service_of(const struct segment *segment)
{
	struct service_key key = { .interface = segment->key.interface, .port = segment->key.guest_port };

	return bpf_map_lookup_elem(&tap_services, &key);
}

/* A service that the guest shows it has, unless it has too many. */
static __noinline struct service *make_service(const struct segment *segment)
{
	struct service_key key = { .interface = segment->key.interface, .port = segment->key.guest_port };
	struct service nothing = {};
	struct lost *all;
	u32 *services = bpf_map_lookup_elem(&tap_interfaces, &key.interface);

	if (services && *services < MOST_SERVICES_OF_ONE) {
		__sync_fetch_and_add(services, 1);
		if (!bpf_map_update_elem(&tap_services, &key, &nothing, BPF_NOEXIST))
			return bpf_map_lookup_elem(&tap_services, &key);
		__sync_fetch_and_add(services, -1); /* there is no room, or another CPU was first */
	}
	all = lost();
	if (all)
		add(&all->services, 1);
	return NULL;
}

static void count_request(struct service *service, u8 protocol, u64 weight)
{
	switch (protocol) {
	case HTTP:
		add(&service->http, weight);
		break;
	case HTTP2:
		add(&service->http2, weight);
		break;
	case MEMCACHED:
		add(&service->memcached, weight);
		break;
	case MEMCACHED_BINARY:
		add(&service->memcached_binary, weight);
		break;
	case TLS:
		add(&service->tls, weight);
		break;
	default:
		add(&service->other, weight);
	}
}

/* Whether a segment of TLS has more in it than the handshake and alerts, as far as its first records show. Of TLS 1.3,
 * all records from the client's Finished on say that they are data.
 */
static bool has_data(struct connection *connection, const u8 head[HEAD_BYTES], u32 length, bool from_client)
{
	u32 first = (u32)head[3] << 8 | head[4], second = (u32)head[9] << 8 | head[10];

	if (head[0] == RECORD_DATA) {
		if (length != RECORD_BYTES + first)
			return true;
		if (first == ALERT_BYTES)
			return false;
		/* After a HelloRetryRequest the Finished comes alone. */
		if (from_client && !connection->finished && (first == SHA256_FINISHED || first == SHA384_FINISHED)) {
			connection->finished = true;
			return false;
		}
		return true;
	}
	if (from_client && head[0] == RECORD_HANDSHAKE && head[RECORD_BYTES] != CLIENT_HELLO)
		connection->finished = true; /* TLS 1.2: with its keys comes its Finished */
	if (head[0] == RECORD_CIPHER && head[CIPHER_BYTES] == RECORD_DATA) {
		connection->finished = true;
		return length > CIPHER_BYTES + RECORD_BYTES + second;
	}
	return false;
}

/* Whether a command of memcached that stores, changes or deletes wants no answer, and nothing follows it. */
__attribute__((noinline)) int is_noreply(struct __sk_buff *skb, const struct segment *segment, u32 first)
{
	u8 line[LINE_BYTES] = {};
	u32 length, end = 0, size = 0, power = 1;
	bool stores = false;

	if (!segment)
		return false;
	length = segment->length < LINE_BYTES ? segment->length : LINE_BYTES;
	switch (first) {
	case FOUR('s', 'e', 't', ' '):
	case FOUR('a', 'd', 'd', ' '):
	case FOUR('r', 'e', 'p', 'l'):
	case FOUR('a', 'p', 'p', 'e'):
	case FOUR('p', 'r', 'e', 'p'):
		stores = true;
		break;
	case FOUR('i', 'n', 'c', 'r'):
	case FOUR('d', 'e', 'c', 'r'):
	case FOUR('d', 'e', 'l', 'e'):
	case FOUR('t', 'o', 'u', 'c'):
	case FOUR('f', 'l', 'u', 's'):
		break;
	default:
		return false;
	}
	asm volatile("" : "+r"(length)); /* the verifier of 6.1 must see its range where it is used */
	if (length < HEAD_BYTES || length > LINE_BYTES || bpf_skb_load_bytes(skb, segment->offset, line, length))
		return false;
	for (u32 at = HEAD_BYTES - 1; at < LINE_BYTES; at++) {
		if (line[at] == '\r') {
			end = at;
			break;
		}
	}
	if (end < HEAD_BYTES - 1 || end >= LINE_BYTES || four(line + end - 7) != FOUR('n', 'o', 'r', 'e') ||
	    line[end - 3] != 'p' || line[end - 2] != 'l' || line[end - 1] != 'y')
		return false;
	for (u32 digit = 0; stores && digit < 7; digit++) { /* the size of the value, before " noreply" */
		u8 letter = line[(end - 9 - digit) & (LINE_BYTES - 1)];

		if (letter < '0' || letter > '9')
			break;
		size += (letter - '0') * power;
		power *= 10;
	}
	return segment->length <= end + 2 + (stores ? size + 2 : 0);
}

static u32 opaque_of(const u8 head[HEAD_BYTES])
{
	return four(head + 12);
}

/* Whether a command of memcached's binary protocol may have no answer, as it says. */
static bool is_quiet(const u8 head[HEAD_BYTES])
{
	u8 code = head[1];

	return code == 0x09 || code == 0x0d || (code >= 0x11 && code <= 0x1a) || code == 0x1e || code == 0x24;
}

static void let_wait(struct request *request, u32 opaque, u64 now_ns)
{
	request->asked_ns = now_ns;
	request->opaque = opaque;
	store(&request->waiting, 1); /* after asked_ns, by which count_waiting judges it */
}

/* Whether it waited; it does no more. */
static bool take_back(struct request *request)
{
	return request->waiting && __sync_lock_test_and_set(&request->waiting, 0);
}

/* A request is answered, unless another CPU was first; when it was asked, or 0. Its time tells only where no other CPU put
 * another request in its place meanwhile.
 */
static u64 count_answer(u32 interface, u32 port, struct service *service, struct request *request, bool timed,
			u64 now_ns, u64 weight)
{
	u64 asked_ns = request->asked_ns;

	if (!take_back(request))
		return 0;
	if (timed && request->asked_ns == asked_ns && now_ns >= asked_ns) {
		add(&service->answers, weight);
		if (service->late_ns && now_ns - asked_ns > service->late_ns)
			add(&service->late, weight);
		count_in_bucket(interface, port, now_ns - asked_ns, 0, weight);
	} else {
		add(&service->untimed, weight);
	}
	return asked_ns;
}

#include "messages.bpf.h"
#include "order.bpf.h"

static bool any_waits(const struct connection *connection)
{
	u32 waiting = connection->requests[0].waiting;

	if (connection->matched == BY_OPAQUE)
		for (u32 place = 1; place < MOST_REQUESTS; place++)
			waiting |= connection->requests[place].waiting;
	return waiting;
}

static void begin_request(struct __sk_buff *skb, const struct segment *segment, struct connection *connection,
			  struct service *service, const u8 head[HEAD_BYTES])
{
	u64 now_ns = segment->now_ns, weight = segment->weight;
	u8 protocol = recognise(head);

	connection->requests[0].asked_ns = now_ns;
	connection->latest = 0;
	/* Of a connection that is known already, the first bytes may be any. */
	if (connection->protocol == HTTP2 || connection->protocol == TLS)
		protocol = connection->protocol;
	if (protocol == OTHER && begins_message(connection->protocol))
		return; /* the rest of a request that was answered early, or that wants no answer */
	if (protocol != connection->protocol && connection->matched == BY_OPAQUE)
		connection->matched = UNTIMED;
	connection->protocol = protocol;
	if (protocol == TLS && !has_data(connection, head, segment->length, true))
		return;
	count_request(service, protocol, weight);
	if (protocol == MEMCACHED && is_noreply(skb, segment, four(head))) {
		add(&service->noreply, weight);
		return;
	}
	if (protocol == HTTP2)
		connection->matched = UNTIMED;
	if (connection->matched == BY_OPAQUE && is_quiet(head))
		add(&service->untimed, weight); /* what is answered may be another command behind it */
	else
		let_wait(&connection->requests[0], opaque_of(head), now_ns);
}

/* Of requests that wait, those from a place on are not timed. */
static void give_up_from(u32 place, struct connection *connection, struct service *service, u64 weight)
{
	for (; place < MOST_REQUESTS; place++)
		if (take_back(&connection->requests[place]))
			add(&service->untimed, weight);
}

/* The places of requests that have a number in memcached's binary protocol, one bit each. */
static u32 numbered_as(const struct connection *connection, u32 opaque)
{
	u32 same = 0;

	for (u32 place = 0; place < MOST_REQUESTS; place++) {
		u64 differ = connection->requests[place].opaque ^ opaque;

		asm volatile("" : "+r"(differ)); /* no branch: the verifier would follow each of their combinations */
		same |= (u32)((differ - 1) >> 63) << place;
	}
	return same;
}

#define NEVER_TIMED (1ULL << 32) /* its answer is another's, or there is none */
#define IS_CUT (1ULL << 33)

/* Of a request's beginning, what begin_further is told: the number, and what else. ``length``: of the segment from there. */
static u64 described(const u8 head[HEAD_BYTES], u32 length)
{
	return opaque_of(head) | (is_quiet(head) ? NEVER_TIMED : 0) | (length < MESSAGE_BYTES ? IS_CUT : 0);
}

/* A request while others wait, or behind another one in a segment. The verifier looks at it once. */
__attribute__((noinline)) int begin_further(struct connection *connection, struct service *service, u64 described,
					    u64 now_ns, u64 weight)
{
	u32 free, waiting = 0, same;
	bool told;

	if (!connection || !service)
		return 0;
	same = numbered_as(connection, (u32)described);
	for (u32 place = 0; place < MOST_REQUESTS; place++)
		waiting |= (connection->requests[place].waiting & 1) << place;
	told = connection->protocol == MEMCACHED_BINARY && !(described & IS_CUT) && connection->matched != UNTIMED &&
	       !(waiting & same);
	for (free = 0; free < MOST_REQUESTS && waiting >> free & 1; free++)
		;
	if (!told) {
		/* The first one waits on, to see that there is an answer. */
		give_up_from(1, connection, service, weight);
		connection->matched = UNTIMED;
		connection->pipelines = connection->protocol != MEMCACHED_BINARY;
		connection->latest = 0;
		connection->requests[0].asked_ns = now_ns;
		add(&service->untimed, weight);
		return 0;
	}
	if (connection->matched == BY_TURNS)
		connection->framed = false;
	connection->matched = BY_OPAQUE;
	if (described & NEVER_TIMED)
		free = MOST_REQUESTS;
	connection->latest = free;
	if (free < MOST_REQUESTS)
		let_wait(&connection->requests[free], (u32)described, now_ns);
	else
		add(&service->untimed, weight);
	return 0;
}

struct asking {
	struct __sk_buff *skb;
	struct connection *connection;
	struct service *service;
	u64 now_ns;
	u64 weight;
	u32 at; /* in the packet */
	u32 end;
};

/* The length of a message that begins so. */
static u32 message_bytes(const u8 head[HEAD_BYTES])
{
	return MESSAGE_BYTES + four(head + 8);
}

/* One of the requests that begin in a segment; bpf_loop ends with 1. */
static long ask_one(u32 before, struct asking *asking)
{
	u8 head[HEAD_BYTES] = {};

	if (asking->at + MESSAGE_BYTES > asking->end ||
	    bpf_skb_load_bytes(asking->skb, asking->at, head, sizeof(head)) || recognise(head) != MEMCACHED_BINARY ||
	    four(head + 8) > MOST_BODY_BYTES)
		return 1;
	count_request(asking->service, MEMCACHED_BINARY, asking->weight);
	begin_further(asking->connection, asking->service, described(head, asking->end - asking->at), asking->now_ns,
		      asking->weight);
	asking->at += message_bytes(head);
	return 0;
}

/* The requests of memcached's binary protocol behind the first one in a segment. */
__attribute__((noinline)) int ask_others(struct __sk_buff *skb, const struct segment *segment,
					 struct connection *connection, struct service *service, u32 first_bytes)
{
	struct asking asking = { .skb = skb, .connection = connection, .service = service };

	if (!segment || !connection || !service)
		return 0;
	asking.now_ns = segment->now_ns;
	asking.weight = segment->weight;
	asking.at = segment->offset + first_bytes;
	asking.end = segment->offset + segment->length;
	if (HAS_LOOP)
		bpf_loop(MOST_REQUESTS_IN_ONE - 1, ask_one, &asking, 0);
	return 0;
}

static u32 ticks_of(u64 time_ns)
{
	u32 ticks = (u32)(time_ns >> TICK_SHIFT);

	return ticks ? ticks : 1;
}

static bool is_silent(const struct connection *connection, u64 now_ns)
{
	return connection->answered_ticks && ticks_of(now_ns) - connection->answered_ticks > SILENT_TICKS;
}

/* A row's, if no other CPU looks at it; leave_handshake() must follow. */
static struct handshake *hold_handshake(struct row *row)
{
	return !__sync_lock_test_and_set(&row->handshake.busy, 1) ? &row->handshake : NULL;
}

static void leave_handshake(struct handshake *handshake)
{
	store(&handshake->busy, 0);
}

/* Where the guest's next message begins, of a connection that is new, if its handshake was seen and nothing since. */
static bool is_known(struct row *row, const struct segment *segment, u32 from, u32 *answers)
{
	struct handshake *accepted = hold_handshake(row);
	bool known;

	if (!accepted)
		return false;
	known = accepted->tag == tag_of(segment->hash) && !accepted->begun_ns && accepted->sequence + 1 == from;
	*answers = accepted->answers;
	if (known)
		accepted->tag = 0;
	leave_handshake(accepted);
	return known;
}

static bool has_order(u8 protocol)
{
	return protocol == HTTP || protocol == MEMCACHED;
}

/* A connection begins, or its client pipelined: its requests are matched by their order where nothing waits. */
static __noinline void begin_in_order(struct row *row, const struct segment *segment, struct connection *connection,
				      u32 from, const u8 head[HEAD_BYTES])
{
	u8 protocol = connection->matched == UNTIMED ? connection->protocol : recognise(head);
	u32 answers = connection->answered_end;

	if (connection->matched == UNTIMED
		    ? any_waits(connection) || !connection->pipelines || !is_silent(connection, segment->now_ns)
		    : !is_known(row, segment, from, &answers))
		return;
	if (!has_order(protocol) || !begin_order(segment, connection, answers, protocol == HTTP))
		return;
	connection->protocol = protocol;
	connection->matched = BY_ORDER;
}

/* Whether a segment of requests needs no more to be done. */
static __always_inline bool ask_in_order(struct __sk_buff *skb, const struct segment *segment,
					 struct connection *connection, struct service *service)
{
	int seen = follow(skb, segment, connection, service, false);

	connection->requests[0].asked_ns = segment->now_ns;
	if (seen & SEVERAL)
		connection->pipelines = true;
	if (seen & TAKES_TURNS) {
		end_order(connection);
		connection->matched = BY_TURNS;
		return false;
	}
	if (!(seen & LOST_ITS_WAY))
		return true;
	lose_order(segment, connection, service);
	return seen & BEGUN;
}

/* Whether a segment of answers needs no more to be done. */
static __always_inline bool answer_in_order(struct __sk_buff *skb, const struct segment *segment,
					    struct connection *connection, struct service *service)
{
	int seen = follow(skb, segment, connection, service, true);

	if (!(seen & LOST_ITS_WAY))
		return true;
	lose_order(segment, connection, service);
	return seen & BEGUN || connection->pipelines;
}

/* The client sends; ``from`` is the sequence number of the first byte. */
static __always_inline void ask(struct __sk_buff *skb, struct row *row, struct segment *segment,
				struct service *service, u32 from)
{
	struct connection *connection = connection_at(row, find(row, segment));
	u32 end = from + segment->length;
	u8 head[HEAD_BYTES] = {};
	bool is_new = !connection, asked, follows, again;
	u64 weight = segment->weight, now_ns;

	if (SELDOM(is_new))
		connection = connection_at(row, insert(row, segment));
	if (!connection)
		return;
	asked = connection->requests[0].asked_ns;
	if (asked && (s32)(end - connection->asked_end) <= 0)
		return; /* sent again */
	now_ns = bpf_ktime_get_ns();
	segment->now_ns = now_ns;
	load_head(skb, segment, head);
	follows = !asked || connection->asked_end == from;
	again = asked && (s32)(from - connection->asked_end) < 0; /* it begins with bytes that passed before */
	connection->asked_end = end;
	if (SELDOM(is_new || connection->matched == UNTIMED))
		begin_in_order(row, segment, connection, from, head);
	if (SELDOM(connection->matched == BY_ORDER) && ask_in_order(skb, segment, connection, service))
		return;
	if (!any_waits(connection)) {
		if (is_silent(connection, now_ns))
			connection->matched = BY_TURNS; /* whatever was asked is answered by now */
		begin_request(skb, segment, connection, service, head);
	} else if (!again && begins_message(connection->protocol) && recognise(head) == connection->protocol) {
		count_request(service, connection->protocol, weight);
		if (connection->protocol == MEMCACHED && is_noreply(skb, segment, four(head)))
			return;
		begin_further(connection, service, described(head, segment->length), now_ns, weight);
	} else {
		u32 latest = connection->latest;

		if (latest < MOST_REQUESTS) /* more of it */
			connection->requests[latest].asked_ns = now_ns;
		return;
	}
	if (SELDOM(connection->protocol == MEMCACHED_BINARY) && follows && four(head + 8) <= MOST_BODY_BYTES &&
	    message_bytes(head) < segment->length)
		ask_others(skb, segment, connection, service, message_bytes(head));
}

/* Answers come in the order of their requests: those that wait and are older had none, or one that could not be seen. */
static void answer_some(const struct segment *segment, struct connection *connection, struct service *service,
			u32 answered, u64 now_ns, u64 weight)
{
	u64 latest_ns = 0;

#pragma clang loop unroll(disable)
	for (u32 place = 0; place < MOST_REQUESTS; place++) {
		u64 asked_ns = 0;

		if (answered >> place & 1)
			asked_ns = count_answer(segment->key.interface, segment->key.guest_port, service,
						&connection->requests[place], true, now_ns, weight);
		if (asked_ns > latest_ns)
			latest_ns = asked_ns;
	}
	for (u32 place = 0; place < MOST_REQUESTS; place++)
		if (connection->requests[place].asked_ns < latest_ns && take_back(&connection->requests[place]))
			add(&service->untimed, weight);
}

/* The answers that begin in a segment. Where one begins is known from the one before or, to begin with, taken to be
 * where a segment begins. Where that is lost, as at a header that is cut, what waits is not timed.
 */
static void answer_each(struct __sk_buff *skb, const struct segment *segment, struct connection *connection,
			struct service *service, u64 now_ns, u64 weight)
{
	u32 at = connection->framed ? connection->next_answer - segment->sequence : 0;
	u32 answered = 0;

	for (int begun = 0; begun < MOST_ANSWERS && (u64)at + MESSAGE_BYTES <= segment->length; begun++) {
		u8 head[HEAD_BYTES];
		u32 body;

		if (bpf_skb_load_bytes(skb, segment->offset + at, head, sizeof(head)) || head[0] != MAGIC_ANSWER)
			break;
		body = four(head + 8);
		if (body > MOST_BODY_BYTES)
			break;
		answered |= numbered_as(connection, opaque_of(head));
		if (is_error(head, MEMCACHED_BINARY))
			add(&service->errors, weight);
		at += MESSAGE_BYTES + body;
	}
	if (answered)
		answer_some(segment, connection, service, answered, now_ns, weight);
	connection->framed = at >= segment->length && (s32)at >= 0;
	connection->next_answer = segment->sequence + at;
	if (!connection->framed)
		give_up_from(0, connection, service, weight);
}

/* The guest sends. */
static void answer(struct __sk_buff *skb, struct row *row, struct segment *segment, struct service *service)
{
	struct connection *connection = connection_at(row, find(row, segment));
	u32 end = segment->sequence + segment->length;
	u8 head[HEAD_BYTES] = {};
	u64 weight = segment->weight, now_ns;
	bool timed;

	if (!connection || (connection->answered && (s32)(end - connection->answered_end) <= 0))
		return;
	connection->answered = true;
	connection->answered_end = end;
	if (!connection->requests[0].waiting && connection->matched == BY_TURNS)
		return; /* when it was, nobody asks */
	now_ns = bpf_ktime_get_ns();
	segment->now_ns = now_ns;
	connection->answered_ticks = ticks_of(now_ns);
	if (connection->matched == BY_OPAQUE) {
		answer_each(skb, segment, connection, service, now_ns, weight);
		return;
	}
	if (SELDOM(connection->matched == BY_ORDER) && answer_in_order(skb, segment, connection, service))
		return;
	if (!connection->requests[0].waiting)
		return;
	load_head(skb, segment, head);
	if (connection->protocol == TLS && !has_data(connection, head, segment->length, false))
		return;
	if (connection->protocol == HTTP && four(head) == FOUR('H', 'T', 'T', 'P') && head[9] == '1' && head[11] != '1')
		return; /* 100 Continue, 103 Early Hints; 101 Switching Protocols is one */
	/* Of TLS, what the guest sends first may be tickets, which answer nothing. */
	timed = connection->matched == BY_TURNS && (connection->protocol != TLS || connection->turns);
	if (!count_answer(segment->key.interface, segment->key.guest_port, service, &connection->requests[0], timed,
			  now_ns, weight))
		return;
	if (is_error(head, connection->protocol))
		add(&service->errors, weight);
	connection->turns = 1;
}

/* The connection ends, or another one begins in its place. */
static void forget(struct row *row, const struct segment *segment, struct service *service)
{
	u64 place = find(row, segment), weight = segment->weight;
	struct connection *connection = connection_at(row, place);

	if (!connection)
		return;
	if (connection->matched == BY_ORDER)
		add(&service->unanswered, (u64)end_order(connection) * weight);
#pragma clang loop unroll(disable)
	for (u32 request = 0; request < MOST_REQUESTS; request++)
		if (take_back(&connection->requests[request]))
			add(&service->unanswered, weight);
	leave_place(row, place, segment);
}

/* The client opens a connection. */
static void begin_handshake(struct row *row, const struct segment *segment)
{
	struct handshake *handshake = hold_handshake(row);
	u32 tag = tag_of(segment->hash);

	if (!handshake)
		return;
	if (handshake->tag != tag || handshake->sequence != segment->sequence) {
		handshake->tag = tag;
		handshake->sequence = segment->sequence;
		handshake->begun_ns = bpf_ktime_get_ns();
	}
	leave_handshake(handshake);
}

/* The guest's kernel accepts one: no process of the guest has a part in it. Kept until the first request, which shows by it
 * that nothing was before.
 */
static void end_handshake(struct row *row, const struct segment *segment)
{
	struct handshake *handshake = hold_handshake(row);
	u32 tag = tag_of(segment->hash), sequence = segment->acknowledged - 1;
	u64 begun_ns;

	if (!handshake)
		return;
	begun_ns = handshake->tag == tag && handshake->sequence == sequence ? handshake->begun_ns : 0;
	handshake->tag = tag;
	handshake->sequence = sequence;
	handshake->answers = segment->sequence + 1;
	handshake->begun_ns = 0;
	leave_handshake(handshake);
	if (begun_ns)
		count_time(segment, bpf_ktime_get_ns() - begun_ns, HANDSHAKE, 1);
}

/* An acknowledgement alone, as every second packet is. */
static bool is_empty(const struct segment *segment)
{
	return !segment->length && !(segment->flags & (SYN | RST | FIN));
}

static void look_to_guest(struct __sk_buff *skb)
{
	struct segment segment = {};
	struct service *service;
	struct row *row;
	u32 halved;

	if (!parse(skb, &segment, true) || is_empty(&segment))
		return;
	service = service_of(&segment);
	if (!service)
		return;
	segment.hash = hash_of(&segment.key);
	row = row_of(segment.hash);
	if (!row)
		return;
	if ((segment.flags & (SYN | ACK | RST)) == SYN)
		begin_handshake(row, &segment);
	halved = halvings();
	if (!chosen(tag_of(segment.hash), halved))
		return;
	segment.weight = 1u << halved;
	if (segment.flags & (SYN | RST))
		forget(row, &segment, service);
	if (segment.length && !(segment.flags & RST)) /* with a SYN: TCP Fast Open */
		ask(skb, row, &segment, service, segment.sequence + !!(segment.flags & SYN));
}

static void look_from_guest(struct __sk_buff *skb)
{
	struct segment segment = {};
	struct service *service;
	bool accepts, serves;
	struct row *row;
	u32 halved;

	if (!parse(skb, &segment, false) || is_empty(&segment))
		return;
	accepts = (segment.flags & (SYN | ACK)) == (SYN | ACK);
	/* Of a connection that is older than this program, its ports tell who serves. */
	serves = segment.length && segment.key.guest_port < FIRST_EPHEMERAL &&
		 segment.key.client_port >= FIRST_EPHEMERAL;
	service = service_of(&segment);
	if (!service && (accepts || serves))
		service = make_service(&segment);
	if (!service)
		return;
	segment.hash = hash_of(&segment.key);
	row = row_of(segment.hash);
	if (!row)
		return;
	if (accepts) {
		add(&service->connections, 1);
		end_handshake(row, &segment);
	}
	halved = halvings();
	if (!chosen(tag_of(segment.hash), halved))
		return;
	segment.weight = 1u << halved;
	if (segment.length && !accepts)
		answer(skb, row, &segment, service);
	if (segment.flags & (RST | FIN))
		forget(row, &segment, service);
}

/* Egress of the tap. */
SEC("tc")
int to_guest(struct __sk_buff *skb)
{
	look_to_guest(skb);
	return PASS;
}

/* Ingress of the tap. */
SEC("tc")
int from_guest(struct __sk_buff *skb)
{
	look_from_guest(skb);
	return PASS;
}

SEC("socket")
int socket_to_guest(struct __sk_buff *skb)
{
	look_to_guest(skb);
	return 0;
}

SEC("socket")
int socket_from_guest(struct __sk_buff *skb)
{
	look_from_guest(skb);
	return 0;
}

/* Until Linux 6.8 a socket's filter may have 20 KiB (net.core.optmem_max): it has the others called. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(u32));
	__array(values, int(void *));
} tap_calls SEC(".maps") = {
	.values = { (void *)&socket_to_guest, (void *)&socket_from_guest },
};

/* Both, for a packet socket that is bound to the tap, which takes none of the packets. */
SEC("socket")
int both_ways(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &tap_calls, skb->pkt_type == OUTGOING ? 0 : 1);
	return 0;
}

struct bpf_map;

struct look {
	u64 now_ns;
	u64 given_up_ns;
	u32 halved;
	u32 unused;
	struct walk found;
};

static u64 age_of(const struct request *request, const struct look *look)
{
	u64 asked_ns = request->asked_ns;

	return look->now_ns > asked_ns ? look->now_ns - asked_ns : 0; /* asked meanwhile */
}

/* A request that waits. */
static void count_age(const struct connection_key *key, struct request *request, struct look *look)
{
	struct service_key place = { .interface = key->interface, .port = key->guest_port };
	u64 weight = 1ULL << (look->halved & 15), age_ns = age_of(request, look), *count;
	struct service *service;

	if (!bpf_map_lookup_elem(&tap_interfaces, &place.interface)) { /* its answer may pass unseen */
		request->waiting = 0;
		return;
	}
	if (age_ns > look->given_up_ns) {
		service = bpf_map_lookup_elem(&tap_services, &place);
		if (take_back(request) && service)
			add(&service->unanswered, weight);
		return;
	}
	look->found.waiting += weight;
	place.bucket = (u16)bucket_of(age_ns);
	count = bpf_map_lookup_elem(&tap_waiting, &place);
	if (count)
		add(count, weight);
	else
		bpf_map_update_elem(&tap_waiting, &place, &weight, BPF_NOEXIST);
}

/* Whether a connection has an order by this ticket. */
static bool has_ticket(const struct segment *segment, u32 ticket)
{
	struct row *row = row_of(segment->hash);
	struct connection *connection = row ? connection_at(row, find(row, segment)) : NULL;

	return connection && connection->matched == BY_ORDER && connection->order == ticket;
}

/* Of one whose connection is forgotten, none is waited for. Where another one got it meanwhile, the next look counts. */
static long count_order(struct bpf_map *map, u32 *place, struct order *order, struct look *look)
{
	u32 ticket = order->ticket;
	struct segment segment = {};

	if (!ticket || order->first == order->next)
		return 0;
	segment.key = order->key;
	segment.hash = hash_of(&segment.key);
	if (order->ticket != ticket || !chosen(tag_of(segment.hash), look->halved))
		return 0;
	if (!has_ticket(&segment, ticket)) {
		take_all_back(order);
		return 0;
	}
#pragma clang loop unroll(disable)
	for (u32 request = 0; request < MOST_OUTSTANDING; request++)
		if (order->places[request].waiting)
			count_age(&segment.key, &order->places[request], look);
	return 0;
}

static void count_one(struct connection *connection, struct look *look)
{
	look->found.active += age_of(&connection->requests[0], look) <= ACTIVE_S * NS_PER_S;
	if (!any_waits(connection))
		return;
#pragma clang loop unroll(disable)
	for (u32 request = 0; request < MOST_REQUESTS; request++)
		if (connection->requests[request].waiting)
			count_age(&connection->key, &connection->requests[request], look);
}

static long count_row(struct bpf_map *map, u32 *number, struct row *row, struct look *look)
{
#pragma clang loop unroll(disable)
	for (u32 place = 0; place < MOST_IN_ROW; place++)
		if (row->tags[place] && chosen(row->tags[place], look->halved))
			count_one(&row->places[place], look);
	return 0;
}

/* Look at the requests that wait now. Run by the reader; no address leaves the kernel. */
SEC("syscall")
int count_waiting(struct walk *found)
{
	struct look look = { .now_ns = bpf_ktime_get_ns(), .halved = halvings() };
	struct settings *set = settings();

	if (!set)
		return 0;
	look.given_up_ns = set->given_up_ns;
	bpf_for_each_map_elem(&tap_connections, count_row, &look, 0);
	bpf_for_each_map_elem(&tap_orders, count_order, &look, 0);
	*found = look.found;
	return 0;
}

/* Set what is late at a service. Run by the reader, which would else write over what is counted meanwhile. */
SEC("syscall")
int set_late(struct lateness *told)
{
	struct service_key key = { .interface = (u32)told->interface, .port = (u16)told->port };
	struct service *service = bpf_map_lookup_elem(&tap_services, &key);

	told->known = !!service;
	if (service)
		service->late_ns = told->late_ns;
	return 0;
}

char _license[] SEC("license") = "GPL";
