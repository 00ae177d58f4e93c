/* The scenario behind the fake vendor libraries: "key value" lines of the file named by FAKE_DEVICE_SCENARIO, as
 * collectors/scenario.py describes them. The file is read again whenever its inode, time or size changes, so a test
 * injects a fault by renaming a new file over the old one while the process under test runs. Vendor neutral. */
#ifndef SCN_H
#define SCN_H
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SCN_MAX_DEVICES 64
#define SCN_UNUSED __attribute__((unused))

typedef unsigned int u32;
typedef unsigned long long u64;

struct scn_pair {
    char *key, *value;
    size_t line; /* the last line of a key counts */
};

static struct scn_pair *scn_pairs;
static size_t scn_count;
static struct stat scn_seen;
static pthread_mutex_t scn_lock = PTHREAD_MUTEX_INITIALIZER;

static int scn_compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct scn_pair *)a)->key, ((const struct scn_pair *)b)->key);
}

static int scn_compare(const void *a, const void *b)
{
    int order = scn_compare_keys(a, b);
    const struct scn_pair *x = a, *y = b;
    return order ? order : (x->line > y->line) - (x->line < y->line);
}

/* Called with scn_lock held. Old tables are kept: another thread may still read their strings. */
static void scn_refresh(void)
{
    /* A library answers from memory: looking at the file for each of a thousand values would be most of the cost. */
    static struct timespec looked;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (scn_count && (t.tv_sec - looked.tv_sec) * 1000000000L + t.tv_nsec - looked.tv_nsec < 100000L)
        return;
    looked = t;
    const char *path = getenv("FAKE_DEVICE_SCENARIO");
    struct stat now;
    if (!path || stat(path, &now))
        return;
    if (now.st_ino == scn_seen.st_ino && now.st_size == scn_seen.st_size
        && !memcmp(&now.st_mtim, &scn_seen.st_mtim, sizeof now.st_mtim))
        return;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    char line[4096];
    struct scn_pair *pairs = NULL;
    size_t count = 0, room = 0;
    for (size_t number = 0; fgets(line, sizeof line, file); number++) {
        char *key = line + strspn(line, " \t");
        key[strcspn(key, "\r\n")] = 0;
        if (!*key || *key == '#')
            continue;
        char *end = key + strcspn(key, " \t");
        char *value = end + strspn(end, " \t");
        *end = 0;
        if (count == room) {
            room = room ? room * 2 : 256;
            pairs = realloc(pairs, room * sizeof *pairs);
            if (!pairs)
                abort();
        }
        pairs[count++] = (struct scn_pair){strdup(key), strdup(value), number};
    }
    fclose(file);
    if (count)
        qsort(pairs, count, sizeof *pairs, scn_compare);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (i + 1 == count || strcmp(pairs[i].key, pairs[i + 1].key))
            pairs[kept++] = pairs[i];
    scn_pairs = pairs;
    scn_count = kept;
    scn_seen = now;
}

/* The value of a key, or NULL. */
SCN_UNUSED __attribute__((format(printf, 1, 2))) static const char *scn(const char *format, ...)
{
    char key[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&scn_lock);
    scn_refresh();
    struct scn_pair wanted = {key, NULL, 0};
    struct scn_pair *hit
        = scn_count ? bsearch(&wanted, scn_pairs, scn_count, sizeof *scn_pairs, scn_compare_keys) : NULL;
    const char *value = hit ? hit->value : NULL;
    pthread_mutex_unlock(&scn_lock);
    return value;
}

SCN_UNUSED static u64 scn_number(const char *value)
{
    return *value == '-' ? (u64)strtoll(value, NULL, 0) : strtoull(value, NULL, 0);
}

SCN_UNUSED static void scn_sleep_ms(long ms)
{
    struct timespec wait = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&wait, NULL);
}

SCN_UNUSED static int scn_devices(void)
{
    const char *value = scn("gpu.count");
    int count = value ? atoi(value) : 0;
    return count < 0 ? 0 : count > SCN_MAX_DEVICES ? SCN_MAX_DEVICES : count;
}

/* Error, delay and hang of one device and function: the code to answer, or -1 to go on. A hang never returns. */
SCN_UNUSED static int scn_gate(int device, const char *function)
{
    const char *value = scn("gpu%d.hang.%s", device, function);
    if (!value)
        value = scn("gpu%d.hang", device);
    if (value && scn_number(value))
        for (;;)
            pause();
    value = scn("gpu%d.delay_ms.%s", device, function);
    if (!value)
        value = scn("gpu%d.delay_ms", device);
    if (value)
        scn_sleep_ms(atol(value));
    value = scn("gpu%d.error.%s", device, function);
    if (!value)
        value = scn("gpu%d.error", device);
    return value ? (int)scn_number(value) : -1;
}
#endif
