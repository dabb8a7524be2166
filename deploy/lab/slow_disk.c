/* A file system of one file, "disk", which takes a given time for each request: what a loop device makes a slow disk of.
 *
 *   slow_disk BACKING REQUESTS_PER_S MOUNTPOINT
 *
 * Requests are served one after the other, in the order in which they come, as by a disk without a queue of its own.
 * Nothing is cached. Runs until it is unmounted or gets SIGTERM.
 */
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NS_PER_S = 1000000000 };

static int backing;
static int64_t request_ns;
static struct timespec free_at; /* when the disk has done all it was asked for */

/* Wait until this request is done: it begins when the one before it has ended. */
static void take_time(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec > free_at.tv_sec || (now.tv_sec == free_at.tv_sec && now.tv_nsec > free_at.tv_nsec))
        free_at = now;
    free_at.tv_nsec += request_ns;
    free_at.tv_sec += free_at.tv_nsec / NS_PER_S;
    free_at.tv_nsec %= NS_PER_S;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &free_at, NULL) == EINTR)
        ;
}

static int look(const char *path, struct stat *found, struct fuse_file_info *file)
{
    (void)file;
    memset(found, 0, sizeof(*found));
    if (strcmp(path, "/") == 0) {
        found->st_mode = S_IFDIR | 0755;
        found->st_nlink = 2;
        return 0;
    }
    if (strcmp(path, "/disk") != 0)
        return -ENOENT;
    if (fstat(backing, found) != 0)
        return -errno;
    return 0;
}

static int open_disk(const char *path, struct fuse_file_info *file)
{
    if (strcmp(path, "/disk") != 0)
        return -ENOENT;
    file->direct_io = 1;
    return 0;
}

static int read_disk(const char *path, char *data, size_t size, off_t at, struct fuse_file_info *file)
{
    ssize_t done = pread(backing, data, size, at);

    (void)path;
    (void)file;
    take_time();
    return done < 0 ? -errno : (int)done;
}

static int write_disk(const char *path, const char *data, size_t size, off_t at, struct fuse_file_info *file)
{
    ssize_t done = pwrite(backing, data, size, at);

    (void)path;
    (void)file;
    take_time();
    return done < 0 ? -errno : (int)done;
}

/* What was written is done already. */
static int sync_disk(const char *path, int data_only, struct fuse_file_info *file)
{
    (void)path;
    (void)data_only;
    (void)file;
    return 0;
}

static const struct fuse_operations operations = {
    .getattr = look,
    .open = open_disk,
    .read = read_disk,
    .write = write_disk,
    .fsync = sync_disk,
};

int main(int argc, char **argv)
{
    char *arguments[] = {argv[0], "-f", "-s", argc == 4 ? argv[3] : NULL, NULL};
    long rate_per_s = argc == 4 ? strtol(argv[2], NULL, 10) : 0;

    if (rate_per_s < 1 || rate_per_s > 100000) {
        fprintf(stderr, "usage: slow_disk BACKING REQUESTS_PER_S MOUNTPOINT    1 to 100000 requests per second\n");
        return 2;
    }
    backing = open(argv[1], O_RDWR);
    if (backing < 0) {
        fprintf(stderr, "slow_disk: %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    request_ns = NS_PER_S / rate_per_s;
    return fuse_main(4, arguments, &operations, NULL);
}
