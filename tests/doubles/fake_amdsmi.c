/* The hand-written half of a fake libamd_smi.so. gen_amdsmi.py puts struct layouts and every other symbol behind it,
 * read from the ctypes classes of the installed binding, because the layouts change with each ROCm release.
 *
 * Keys beside those of collectors/scenario.py, FUNCTION being the C name:
 *   gpu0.FUNCTION[.SELECTOR...][.FIELD] 5      a field of what FUNCTION gives (gpu0.amdsmi_get_temp_metric.1.0 61);
 *                                              of several results the selector counts them (.0., .1.)
 *   gpu0.FUNCTION.count 2, gpu0.FUNCTION.0.FIELD   lists: bad pages, processes
 *   gpu0.cper.file PATH                        CPER records, one after the other
 * A field that is not named is all ones, which is how the real library says that there is no value; a function
 * without any key answers that it is not supported. */
#include "scn.h"

#define API __attribute__((visibility("default"))) uint32_t

struct row {
    const char *name;
    int offset, size, count;
    char kind; /* i integer, f float, s string */
};
struct layout {
    int size;
    const struct row *rows;
};
extern const struct layout layout_page, layout_process, layout_event, layout_version;
extern const int event_handle_offset;

enum { /* amdsmi_status_t */
    OK = 0,
    INVALID = 1,
    NOT_SUPPORTED = 2,
    OUT_OF_RESOURCES = 15,
    NOT_INIT = 32,
    DRIVER_NOT_LOADED = 34,
    MORE_DATA = 39,
    NO_DATA = 40,
};

static char devices[SCN_MAX_DEVICES]; /* a handle is an address in here */
static int opened;

static int index_of(const void *handle) { return (int)((const char *)handle - devices); }

static int refused(const void *handle, const char *function)
{
    if (!opened)
        return NOT_INIT;
    if (!handle)
        return INVALID;
    return scn_gate(index_of(handle), function);
}

#define ENTER(handle)                                  \
    do {                                               \
        int refusal = refused(handle, __func__);       \
        if (refusal >= 0)                              \
            return (uint32_t)refusal;                  \
    } while (0)

static void put(void *base, const struct row *row, const char *value)
{
    char *place = (char *)base + row->offset;
    if (row->kind == 's') {
        snprintf(place, (size_t)row->count, "%s", value);
        return;
    }
    char text[4096], *rest = text, *word;
    snprintf(text, sizeof text, "%s", value);
    for (int i = 0; i < row->count && (word = strsep(&rest, ",")); i++, place += row->size) {
        if (row->kind == 'f' && row->size == 4) {
            float number = strtof(word, NULL);
            memcpy(place, &number, 4);
        } else if (row->kind == 'f') {
            double number = strtod(word, NULL);
            memcpy(place, &number, 8);
        } else {
            u64 number = scn_number(word);
            memcpy(place, &number, (size_t)row->size);
        }
    }
}

static int fill(void *base, const struct layout *layout, const char *prefix)
{
    /* The real library puts its 16-bit all-ones into the wider fields of these two. */
    int narrow = strstr(prefix, "amdsmi_get_power_info") || strstr(prefix, "amdsmi_get_gpu_activity");
    int named = 0;
    memset(base, 0xff, (size_t)layout->size);
    for (const struct row *row = layout->rows; row->name; row++) {
        if (row->kind == 's')
            ((char *)base)[row->offset] = 0;
        else if (narrow)
            put(base, row, "65535");
        const char *value = scn("%s%s%s", prefix, *row->name ? "." : "", row->name);
        if (value) {
            put(base, row, value);
            named++;
        }
    }
    return named;
}

/* Any function of the shape (handle, selectors..., results...). */
SCN_UNUSED static uint32_t answer(const void *handle, const char *function, int selectors, const u64 *selector,
                                  int results, void *const *result, const struct layout *const *layouts)
{
    int refusal = refused(handle, function);
    if (refusal >= 0)
        return (uint32_t)refusal;
    char prefix[400];
    int named = 0, used = snprintf(prefix, sizeof prefix, "gpu%d.%s", index_of(handle), function);
    for (int i = 0; i < selectors; i++)
        used += snprintf(prefix + used, sizeof prefix - (size_t)used, ".%llu", selector[i]);
    for (int i = 0; i < results; i++) {
        if (results > 1)
            snprintf(prefix + used, sizeof prefix - (size_t)used, ".%d", i);
        if (result[i])
            named += fill(result[i], layouts[i], prefix);
    }
    return named ? OK : NOT_SUPPORTED;
}

API amdsmi_init(u64 flags)
{
    (void)flags;
    const char *code = scn("init.error");
    if (code)
        return (uint32_t)scn_number(code);
    if (!scn_devices())
        return DRIVER_NOT_LOADED;
    opened++;
    return OK;
}

API amdsmi_shut_down(void)
{
    if (opened)
        opened--;
    return OK;
}

API amdsmi_get_socket_handles(uint32_t *count, void **handles)
{
    if (!opened)
        return NOT_INIT;
    uint32_t total = (uint32_t)scn_devices();
    for (uint32_t i = 0; handles && i < total && i < *count; i++)
        handles[i] = &devices[i];
    *count = total;
    return OK;
}

API amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles)
{
    if (!opened)
        return NOT_INIT;
    if (handles)
        *handles = socket;
    *count = 1;
    return OK;
}

API amdsmi_get_processor_type(void *handle, uint32_t *type)
{
    ENTER(handle);
    *type = 1; /* an AMD GPU */
    return OK;
}

static int bdf_of(int index, u64 *bdf)
{
    unsigned domain, bus, device, function;
    const char *text = scn("gpu%d.bdf", index);
    if (!text || sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return 0;
    *bdf = function | (u64)device << 3 | (u64)bus << 8 | (u64)domain << 16;
    return 1;
}

API amdsmi_get_gpu_device_bdf(void *handle, u64 *bdf)
{
    ENTER(handle);
    return bdf_of(index_of(handle), bdf) ? OK : NOT_SUPPORTED;
}

API amdsmi_get_processor_handle_from_bdf(u64 wanted, void **handle)
{
    if (!opened)
        return NOT_INIT;
    u64 bdf;
    for (int i = 0; i < scn_devices(); i++)
        if (bdf_of(i, &bdf) && bdf == wanted) {
            *handle = &devices[i];
            return OK;
        }
    return INVALID;
}

static uint32_t text_of(const void *handle, const char *key, char *text, size_t room)
{
    const char *value = scn("gpu%d.%s", index_of(handle), key);
    if (!value)
        return NOT_SUPPORTED;
    snprintf(text, room, "%s", value);
    return OK;
}

API amdsmi_get_gpu_device_uuid(void *handle, uint32_t *length, char *uuid)
{
    ENTER(handle);
    return text_of(handle, "uuid", uuid, *length);
}

API amdsmi_get_gpu_compute_partition(void *handle, char *text, uint32_t length)
{
    ENTER(handle);
    return text_of(handle, __func__, text, length);
}

API amdsmi_get_gpu_memory_partition(void *handle, char *text, uint32_t length)
{
    ENTER(handle);
    return text_of(handle, __func__, text, length);
}

API amdsmi_get_lib_version(void *version)
{
    static const char build[] = "fake";
    unsigned number[3] = {0, 0, 0};
    const char *text = scn("lib_version");
    if (text)
        sscanf(text, "%u.%u.%u", number, number + 1, number + 2);
    memset(version, 0, (size_t)layout_version.size);
    for (const struct row *row = layout_version.rows; row->name; row++) {
        const char *names[] = {"major", "minor", "release"};
        for (int i = 0; i < 3; i++)
            if (!strcmp(row->name, names[i]))
                memcpy((char *)version + row->offset, &number[i], sizeof number[i]);
    }
    const char *where = build;
    memcpy((char *)version + layout_version.size - sizeof where, &where, sizeof where);
    return OK;
}

API amdsmi_status_code_to_string(uint32_t code, const char **text)
{
    (void)code;
    *text = "fake status";
    return OK;
}

static uint32_t list(const void *handle, const char *function, const struct layout *layout, uint32_t *count, void *out)
{
    char prefix[300];
    const char *value = scn("gpu%d.%s.count", index_of(handle), function);
    if (!value)
        return NOT_SUPPORTED;
    uint32_t total = (uint32_t)scn_number(value), room = *count;
    *count = total;
    for (uint32_t i = 0; out && i < total && i < room; i++) {
        snprintf(prefix, sizeof prefix, "gpu%d.%s.%u", index_of(handle), function, i);
        fill((char *)out + (size_t)i * (size_t)layout->size, layout, prefix);
    }
    return out && total > room ? OUT_OF_RESOURCES : OK;
}

API amdsmi_get_gpu_bad_page_info(void *handle, uint32_t *count, void *pages)
{
    ENTER(handle);
    return list(handle, __func__, &layout_page, count, pages);
}

API amdsmi_get_gpu_memory_reserved_pages(void *handle, uint32_t *count, void *pages)
{
    ENTER(handle);
    return list(handle, __func__, &layout_page, count, pages);
}

API amdsmi_get_gpu_process_list(void *handle, uint32_t *count, void *processes)
{
    ENTER(handle);
    return list(handle, __func__, &layout_process, count, processes);
}

static u64 event_mask[SCN_MAX_DEVICES], events_seen;

API amdsmi_init_gpu_event_notification(void *handle)
{
    ENTER(handle);
    return OK;
}

API amdsmi_set_gpu_event_notification_mask(void *handle, u64 mask)
{
    ENTER(handle);
    event_mask[index_of(handle)] = mask;
    return OK;
}

API amdsmi_stop_gpu_event_notification(void *handle)
{
    ENTER(handle);
    event_mask[index_of(handle)] = 0;
    return OK;
}

static void put_event(char *place, unsigned device, unsigned type, const char *message)
{
    char number[16];
    const void *handle = &devices[device];
    snprintf(number, sizeof number, "%u", type);
    memset(place, 0, (size_t)layout_event.size);
    memcpy(place + event_handle_offset, &handle, sizeof handle);
    for (const struct row *row = layout_event.rows; row->name; row++) {
        if (!strcmp(row->name, "event"))
            put(place, row, number);
        else if (!strcmp(row->name, "message"))
            put(place, row, message);
    }
}

API amdsmi_get_gpu_event_notification(int milliseconds, uint32_t *count, char *events)
{
    uint32_t room = *count, found = 0;
    unsigned device, type;
    for (int waited = 0;; waited += 5) {
        const char *value;
        while (found < room && (value = scn("event.%llu", events_seen + 1))) {
            int message = 0;
            events_seen++;
            if (sscanf(value, "%u %u %n", &device, &type, &message) < 2 || device >= SCN_MAX_DEVICES || !type)
                continue;
            if (event_mask[device] >> (type - 1) & 1)
                put_event(events + (size_t)found++ * (size_t)layout_event.size, device, type,
                          message ? value + message : "");
        }
        if (found || waited >= milliseconds)
            break;
        scn_sleep_ms(5);
    }
    *count = found;
    return found ? OK : NO_DATA;
}

/* A CPER record is a header of 128 bytes with its whole length at byte 20 and its severity at byte 12 (UEFI 2.10,
 * appendix N). Decoding AFIDs is the real library's secret; a record of ours carries them behind the header as
 * "AFID", a 32-bit count and that many 64-bit numbers. */
enum { CPER_HEADER = 128, CPER_SEVERITY = 12, CPER_LENGTH = 20 };

static uint32_t u32_at(const char *place)
{
    uint32_t number;
    memcpy(&number, place, sizeof number);
    return number;
}

API amdsmi_get_gpu_cper_entries(void *handle, uint32_t severities, char *buffer, u64 *size, void **headers, u64 *count,
                                u64 *cursor)
{
    ENTER(handle);
    const char *path = scn("gpu%d.cper.file", index_of(handle));
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!file)
        return path ? 14 : NOT_SUPPORTED;
    static char records[1 << 20];
    size_t end = fread(records, 1, sizeof records, file);
    fclose(file);
    u64 room = *count, used = 0, number = 0;
    uint32_t status = OK;
    *count = 0;
    for (size_t at = 0; at + CPER_HEADER <= end; number++) {
        uint32_t length = u32_at(records + at + CPER_LENGTH);
        if (length < CPER_HEADER || at + length > end)
            break;
        if (number >= *cursor && severities >> u32_at(records + at + CPER_SEVERITY) & 1) {
            if (*count == room || used + length > *size) {
                status = MORE_DATA;
                break;
            }
            memcpy(buffer + used, records + at, length);
            headers[(*count)++] = buffer + used;
            used += length;
        }
        at += length;
    }
    *cursor = number;
    *size = used;
    return status;
}

API amdsmi_get_afids_from_cper(const char *record, uint32_t size, u64 *afids, uint32_t *count)
{
    uint32_t room = *count, total = 0;
    if (size >= CPER_HEADER + 8 && !memcmp(record + CPER_HEADER, "AFID", 4))
        total = u32_at(record + CPER_HEADER + 4);
    if (total > room || CPER_HEADER + 8 + (u64)total * 8 > size)
        total = 0;
    memcpy(afids, record + CPER_HEADER + 8, total * sizeof *afids);
    *count = total;
    return OK;
}
