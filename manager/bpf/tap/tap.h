/* SPDX-License-Identifier: GPL-2.0 */
/* What the program on taps and those who read its maps share. manager/bpf/tap/__init__.py reads this file too: integers,
 * and structs of u64.
 */
#ifndef EQUIPOISE_TAP_H
#define EQUIPOISE_TAP_H

#define MOST_SERVICES 1024
#define MOST_SERVICES_OF_ONE 64 /* of an interface: a guest that answers on every port gets no more */
#define MOST_CONNECTIONS 65536 /* in rows of as many as there are on average, and room for more */
#define MOST_ROWS                                                                                                      \
	16384 /* a power of two; each has a handshake, which a flood of SYNs takes, and no place of a connection */
#define MOST_IN_ROW 7 /* one that was not used lately is forgotten for another */
#define MOST_TIMES 131072
#define MOST_WAITING 16384
#define MOST_HALVINGS 10 /* of the connections that are looked at */
#define MOST_REQUESTS 4 /* of a connection that wait and are timed */
#define MOST_REQUESTS_IN_ONE 16 /* segment, of memcached's binary protocol */
#define MOST_ORDERS 4096 /* connections whose requests wait in their order; a power of two */
#define MOST_PLACES_TRIED 8 /* of these, for another connection */
#define MOST_OUTSTANDING 16 /* of their requests, with a time each; a power of two */
#define MOST_FURTHER 1024 /* of their requests behind those */
#define MOST_YOUNG 16 /* segments of requests, after which a client that took turns is taken to go on so */
#define MOST_STEPS 512 /* of bytes of a segment */
#define MOST_ANSWERS 8 /* in one segment, where it is known which answer is whose */
#define SILENT_S 1 /* after which a client that pipelined is taken to have all its answers */
#define ACTIVE_S 10 /* a connection that asked since then is active */

/* Protocols as recognised by the first bytes of requests. */
#define OTHER 0
#define HTTP 1
#define HTTP2 2
#define MEMCACHED 3
#define MEMCACHED_BINARY 4
#define TLS 5
#define PROTOCOLS 6

/* A service: a port of the guest behind an interface. */
struct service_key {
	u32 interface;
	u16 port;
	u16 bucket; /* 0, or that of response times, or with HANDSHAKE that of handshakes */
};
#define HANDSHAKE 0x8000

/* Value of tap_services: what was counted. */
struct service {
	u64 connections; /* that the guest accepted */
	u64 other; /* requests by their protocol */
	u64 http;
	u64 http2;
	u64 memcached;
	u64 memcached_binary;
	u64 tls;
	u64 answers; /* that were timed */
	u64 untimed; /* requests whose answers cannot be matched */
	u64 unanswered; /* requests whose connection ended before */
	u64 errors; /* answers that say that the server failed */
	u64 late; /* answers that took longer than late_ns */
	u64 late_ns; /* which the reader sets; 0: none is late */
	u64 noreply; /* requests that want no answer */
};

/* Value of tap_lost: what there was no room for. */
struct lost {
	u64 services;
	u64 times;
};

/* Value of tap_settings, which the reader writes. */
struct settings {
	u64 halvings; /* of 2^n connections one is looked at */
	u64 given_up_ns; /* a request that waits longer is unanswered */
	u64 seed; /* of hashes, which nobody outside knows */
};

/* What set_late is told: what is late at a service; and whether there is such a service, which it tells. */
struct lateness {
	u64 interface;
	u64 port;
	u64 late_ns;
	u64 known;
};

/* What count_waiting tells of the connections that are looked at. */
struct walk {
	u64 active;
	u64 waiting;
};

#endif
