// SPDX-License-Identifier: Apache-2.0
/*
 * A slow disk, for LD_PRELOAD: each flush to disk takes the milliseconds longer that stand in the file which
 * SLOW_FLUSH_FILE names. Where there is no such file nothing is changed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void wait_as_told(void)
{
	const char *name = getenv("SLOW_FLUSH_FILE");
	FILE *file = name ? fopen(name, "r") : NULL;
	long delay_ms = 0;

	if (!file)
		return;
	if (fscanf(file, "%ld", &delay_ms) == 1 && delay_ms > 0) {
		struct timespec delay = { delay_ms / 1000, delay_ms % 1000 * 1000000 };

		nanosleep(&delay, NULL);
	}
	fclose(file);
}

int fsync(int fd)
{
	int (*flush)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");

	wait_as_told();
	return flush(fd);
}

int fdatasync(int fd)
{
	int (*flush)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");

	wait_as_told();
	return flush(fd);
}
