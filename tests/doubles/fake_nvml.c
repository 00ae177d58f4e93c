/* A stand-in for libnvidia-ml.so.1: every NVML call that the agent makes, answered from the scenario of scn.h.
 * A key that is not in the scenario is NOT_SUPPORTED. Layouts are those of nvml.h; pynvml declares them likewise. */
#include "scn.h"

#define API __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25,
};

struct device {
    int index;
};
static struct device devices[SCN_MAX_DEVICES];
static int references;

#define ENTER(device)                                   \
    do {                                                \
        if (!references)                                \
            return UNINITIALIZED;                       \
        if (!(device))                                  \
            return INVALID_ARGUMENT;                    \
        int code = scn_gate((device)->index, __func__); \
        if (code >= 0)                                  \
            return (u32)code;                           \
    } while (0)

#define SYSTEM()                  \
    do {                          \
        if (!references)          \
            return UNINITIALIZED; \
    } while (0)

static u32 copy_text(const char *value, char *out, u32 room)
{
    if (!value)
        return NOT_SUPPORTED;
    if (strlen(value) >= room)
        return INSUFFICIENT_SIZE;
    memcpy(out, value, strlen(value) + 1);
    return SUCCESS;
}

/* Numbers of a comma-separated value; returns whether there were as many as wanted. */
static int numbers(const char *value, u64 *out, int wanted)
{
    for (int i = 0; i < wanted; i++) {
        char *end;
        out[i] = strtoull(value, &end, 0);
        if (end == value)
            return 0;
        value = end + (*end == ',');
    }
    return 1;
}

/* Library and enumeration */

API u32 nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    const char *error = scn("init.error");
    if (scn("init.hang"))
        for (;;)
            pause();
    if (error)
        return (u32)scn_number(error);
    for (int i = 0; i < SCN_MAX_DEVICES; i++)
        devices[i].index = i;
    references++;
    return SUCCESS;
}

API u32 nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API u32 nvmlShutdown(void)
{
    SYSTEM();
    references--;
    return SUCCESS;
}

API const char *nvmlErrorString(u32 code)
{
    static __thread char text[40];
    snprintf(text, sizeof text, "fake NVML error %u", code);
    return text;
}

API u32 nvmlSystemGetDriverVersion(char *out, u32 room)
{
    SYSTEM();
    return copy_text(scn("driver_version"), out, room);
}

API u32 nvmlSystemGetNVMLVersion(char *out, u32 room)
{
    SYSTEM();
    return copy_text(scn("nvml_version"), out, room);
}

API u32 nvmlDeviceGetCount_v2(u32 *out)
{
    SYSTEM();
    const char *error = scn("count.error");
    if (error)
        return (u32)scn_number(error);
    *out = (u32)scn_devices();
    return SUCCESS;
}

API u32 nvmlDeviceGetHandleByIndex_v2(u32 index, struct device **out)
{
    SYSTEM();
    if (index >= (u32)scn_devices())
        return INVALID_ARGUMENT;
    int code = scn_gate((int)index, __func__);
    if (code >= 0)
        return (u32)code;
    *out = &devices[index];
    return SUCCESS;
}

static u32 handle_by(const char *key, const char *wanted, struct device **out)
{
    SYSTEM();
    for (int i = 0; i < scn_devices(); i++) {
        const char *value = scn("gpu%d.%s", i, key);
        if (value && !strcasecmp(value, wanted)) {
            *out = &devices[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

API u32 nvmlDeviceGetHandleByUUID(const char *uuid, struct device **out)
{
    return handle_by("uuid", uuid, out);
}

API u32 nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct device **out)
{
    return handle_by("bdf", bus_id, out);
}

struct pci_info {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char bus_id[32];
};

API u32 nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *out)
{
    ENTER(device);
    const char *value = scn("gpu%d.bdf", device->index);
    u32 domain, bus, slot, function = 0;
    if (!value)
        return NOT_SUPPORTED;
    if (sscanf(value, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3)
        return INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    out->domain = domain;
    out->bus = bus;
    out->device = slot;
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.%X", domain & 0xffff, bus & 0xff, slot & 0xff, function & 7);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.%X", domain & 0xffff, bus & 0xff, slot & 0xff, function & 7);
    return SUCCESS;
}

/* Texts, numbers, numbers with one or two selectors: function and scenario key */

#define TEXT(function, key)                                             \
    API u32 function(struct device *device, char *out, u32 room)        \
    {                                                                   \
        ENTER(device);                                                  \
        return copy_text(scn("gpu%d." key, device->index), out, room);  \
    }
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetBoardPartNumber, "part_number")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom")

API u32 nvmlDeviceGetGspFirmwareVersion(struct device *device, char *out)
{
    ENTER(device);
    return copy_text(scn("gpu%d.gsp", device->index), out, 64);
}

#define NUMBER(function, type, key)                          \
    API u32 function(struct device *device, type *out)       \
    {                                                        \
        ENTER(device);                                       \
        const char *value = scn("gpu%d." key, device->index); \
        if (!value)                                          \
            return NOT_SUPPORTED;                            \
        *out = (type)scn_number(value);                      \
        return SUCCESS;                                      \
    }
NUMBER(nvmlDeviceGetIndex, u32, "index")
NUMBER(nvmlDeviceGetMinorNumber, u32, "minor")
NUMBER(nvmlDeviceGetArchitecture, u32, "arch")
NUMBER(nvmlDeviceGetModuleId, u32, "module_id")
NUMBER(nvmlDeviceGetNumaNodeId, int, "numa_node")
NUMBER(nvmlDeviceGetPowerUsage, u32, "power_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, u32, "power_limit_mw")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, "energy_mj")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, "clock_reasons")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "clock_reasons")
NUMBER(nvmlDeviceGetPcieReplayCounter, u32, "pcie_replay")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, u32, "pcie_gen")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, u32, "pcie_gen_max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, u32, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, u32, "pcie_width_max")
NUMBER(nvmlDeviceGetSupportedEventTypes, u64, "event_types")
NUMBER(nvmlDeviceGetPerformanceState, u32, "pstate")
NUMBER(nvmlDeviceGetPersistenceMode, u32, "persistence")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, u32, "retired_pending")

#define SELECTED(function, type, key)                                      \
    API u32 function(struct device *device, u32 selector, type *out)       \
    {                                                                      \
        ENTER(device);                                                     \
        const char *value = scn("gpu%d." key ".%u", device->index, selector); \
        if (!value)                                                        \
            return NOT_SUPPORTED;                                          \
        *out = (type)scn_number(value);                                    \
        return SUCCESS;                                                    \
    }
SELECTED(nvmlDeviceGetTemperature, u32, "temp")
SELECTED(nvmlDeviceGetTemperatureThreshold, u32, "temp_threshold")
SELECTED(nvmlDeviceGetClockInfo, u32, "clock_mhz")
SELECTED(nvmlDeviceGetMaxClockInfo, u32, "clock_max_mhz")
SELECTED(nvmlDeviceGetNvLinkState, u32, "nvlink_state")
SELECTED(nvmlDeviceGetNvLinkRemoteDeviceType, u32, "nvlink_remote")

/* The real one samples for 21 ms while the caller waits; nothing of ours may call it. */
API u32 nvmlDeviceGetPcieThroughput(struct device *device, u32 counter, u32 *out)
{
    ENTER(device);
    scn_sleep_ms(21);
    const char *value = scn("gpu%d.pcie_kbps.%u", device->index, counter);
    if (!value)
        return NOT_SUPPORTED;
    *out = (u32)scn_number(value);
    return SUCCESS;
}

#define SELECTED_TWICE(function, key)                                           \
    API u32 function(struct device *device, u32 first, u32 second, u64 *out)    \
    {                                                                           \
        ENTER(device);                                                          \
        const char *value = scn("gpu%d." key ".%u.%u", device->index, first, second); \
        if (!value)                                                             \
            return NOT_SUPPORTED;                                               \
        *out = scn_number(value);                                               \
        return SUCCESS;                                                         \
    }
SELECTED_TWICE(nvmlDeviceGetTotalEccErrors, "ecc")
SELECTED_TWICE(nvmlDeviceGetNvLinkErrorCounter, "nvlink_err")

API u32 nvmlDeviceGetMemoryErrorCounter(struct device *device, u32 kind, u32 scope, u32 place, u64 *out)
{
    ENTER(device);
    const char *value = scn("gpu%d.ecc.%u.%u.%u", device->index, kind, scope, place);
    if (!value)
        return NOT_SUPPORTED;
    *out = scn_number(value);
    return SUCCESS;
}

/* Several numbers at once: "a,b,..." */

#define LIST(function, key, wanted, signature, store)         \
    API u32 function signature                                \
    {                                                         \
        u64 n[wanted];                                        \
        ENTER(device);                                        \
        const char *value = scn("gpu%d." key, device->index); \
        if (!value)                                           \
            return NOT_SUPPORTED;                             \
        if (!numbers(value, n, wanted))                       \
            return INVALID_ARGUMENT;                          \
        store return SUCCESS;                                 \
    }
LIST(nvmlDeviceGetEccMode, "ecc_mode", 2, (struct device *device, u32 *now, u32 *later),
     *now = (u32)n[0]; *later = (u32)n[1];)
LIST(nvmlDeviceGetMigMode, "mig_mode", 2, (struct device *device, u32 *now, u32 *later),
     *now = (u32)n[0]; *later = (u32)n[1];)
LIST(nvmlDeviceGetPowerManagementLimitConstraints, "power_limits_mw", 2, (struct device *device, u32 *low, u32 *high),
     *low = (u32)n[0]; *high = (u32)n[1];)
LIST(nvmlDeviceGetUtilizationRates, "util", 2, (struct device *device, u32 *out),
     out[0] = (u32)n[0]; out[1] = (u32)n[1];)
LIST(nvmlDeviceGetRemappedRows, "remap", 4,
     (struct device *device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed),
     *corrected = (u32)n[0]; *uncorrected = (u32)n[1]; *pending = (u32)n[2]; *failed = (u32)n[3];)
LIST(nvmlDeviceGetRowRemapperHistogram, "remap_hist", 5, (struct device *device, u32 *out),
     for (int i = 0; i < 5; i++) out[i] = (u32)n[i];)
LIST(nvmlDeviceGetMemoryInfo, "mem", 3, (struct device *device, u64 *out),
     out[0] = n[0]; out[2] = n[1] + n[2]; out[1] = out[0] - out[2];) /* version 1: used includes the reserve */

/* Versioned structs: the caller says which layout it holds */

#define CHECK_VERSION(out, version)   \
    do {                              \
        if (*(u32 *)(out) != (version)) \
            return VERSION_MISMATCH;  \
    } while (0)

struct memory_v2 {
    u32 version;
    u64 total, reserved, free, used;
};

API u32 nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *out)
{
    u64 n[3]; /* total, used, reserved */
    ENTER(device);
    CHECK_VERSION(out, 0x02000028);
    const char *value = scn("gpu%d.mem", device->index);
    if (!value)
        return NOT_SUPPORTED;
    if (!numbers(value, n, 3))
        return INVALID_ARGUMENT;
    *out = (struct memory_v2){out->version, n[0], n[2], n[0] - n[1] - n[2], n[1]};
    return SUCCESS;
}

struct margin {
    u32 version;
    int celsius;
};

API u32 nvmlDeviceGetMarginTemperature(struct device *device, struct margin *out)
{
    ENTER(device);
    CHECK_VERSION(out, 0x01000008);
    const char *value = scn("gpu%d.temp_margin", device->index);
    if (!value)
        return NOT_SUPPORTED;
    out->celsius = (int)scn_number(value);
    return SUCCESS;
}

struct fabric {
    u32 version;
    unsigned char cluster[16];
    u32 status, clique, state, health;
    unsigned char summary;
};

/* "state,status,clique,health mask"; gpuN.fabric_version 2 is a driver that knows no version 3. Without a key the
 * real library succeeds with state 0. */
API u32 nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric *out)
{
    u64 n[4] = {0, 0, 0, 0};
    ENTER(device);
    const char *value = scn("gpu%d.fabric", device->index), *known = scn("gpu%d.fabric_version", device->index);
    if (out->version >> 24 > (known ? (u32)scn_number(known) : 3))
        return VERSION_MISMATCH;
    if (value && !numbers(value, n, 4))
        return INVALID_ARGUMENT;
    memset(out->cluster, value ? 0xab : 0, sizeof out->cluster);
    out->state = (u32)n[0];
    out->status = (u32)n[1];
    out->clique = (u32)n[2];
    out->health = (u32)n[3];
    return SUCCESS;
}

struct sram {
    u32 version;
    u64 counts[11];
    u32 threshold_exceeded;
};

API u32 nvmlDeviceGetSramEccErrorStatus(struct device *device, struct sram *out)
{
    ENTER(device);
    CHECK_VERSION(out, 0x01000068);
    const char *value = scn("gpu%d.sram_threshold", device->index);
    if (!value)
        return NOT_SUPPORTED;
    memset(out->counts, 0, sizeof out->counts);
    out->threshold_exceeded = (u32)scn_number(value);
    return SUCCESS;
}

struct repair {
    u32 version, channel, tpc;
};

API u32 nvmlDeviceGetRepairStatus(struct device *device, struct repair *out)
{
    u64 n[2];
    ENTER(device);
    CHECK_VERSION(out, 0x0100000c);
    const char *value = scn("gpu%d.repair", device->index);
    if (!value)
        return NOT_SUPPORTED;
    if (!numbers(value, n, 2))
        return INVALID_ARGUMENT;
    out->channel = (u32)n[0];
    out->tpc = (u32)n[1];
    return SUCCESS;
}

struct unrepairable {
    u32 version, flag;
};

API u32 nvmlDeviceGetUnrepairableMemoryFlag_v1(struct device *device, struct unrepairable *out)
{
    ENTER(device);
    CHECK_VERSION(out, 0x01000008);
    const char *value = scn("gpu%d.unrepairable", device->index);
    if (!value)
        return NOT_SUPPORTED;
    out->flag = (u32)scn_number(value);
    return SUCCESS;
}

API u32 nvmlDeviceValidateInforom(struct device *device)
{
    ENTER(device);
    return SUCCESS;
}

struct violation {
    u64 reference_us, violated_ns;
};

API u32 nvmlDeviceGetViolationStatus(struct device *device, u32 policy, struct violation *out)
{
    ENTER(device);
    const char *value = scn("gpu%d.field.%u", device->index, 74 + policy);
    if (!value)
        return NOT_SUPPORTED;
    *out = (struct violation){(u64)time(NULL) * 1000000, scn_number(value)};
    return SUCCESS;
}

/* Lists */

static u32 retired_pages(struct device *device, u32 cause, u32 *count, u64 *addresses, u64 *times)
{
    const char *value = scn("gpu%d.retired.%u", device->index, cause);
    if (!value)
        return NOT_SUPPORTED;
    u32 have = (u32)scn_number(value), room = *count;
    *count = have;
    if (!addresses)
        return have ? INSUFFICIENT_SIZE : SUCCESS;
    for (u32 i = 0; i < have && i < room; i++) {
        addresses[i] = 0x1000 * (i + 1);
        if (times)
            times[i] = i;
    }
    return have > room ? INSUFFICIENT_SIZE : SUCCESS;
}

API u32 nvmlDeviceGetRetiredPages(struct device *device, u32 cause, u32 *count, u64 *addresses)
{
    ENTER(device);
    return retired_pages(device, cause, count, addresses, NULL);
}

API u32 nvmlDeviceGetRetiredPages_v2(struct device *device, u32 cause, u32 *count, u64 *addresses, u64 *times)
{
    ENTER(device);
    return retired_pages(device, cause, count, addresses, times);
}

struct process {
    u32 pid;
    u64 memory;
    u32 gpu_instance, compute_instance;
};

/* "pid:bytes,pid:bytes"; without bytes the memory is not available; the word none is an empty list. */
API u32 nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, u32 *count, struct process *out)
{
    ENTER(device);
    const char *value = scn("gpu%d.procs", device->index);
    char text[4096], *rest = text, *one;
    u32 have = 0, room = *count;
    if (!value)
        return NOT_SUPPORTED;
    snprintf(text, sizeof text, "%s", strcmp(value, "none") ? value : "");
    while ((one = strsep(&rest, ","))) {
        if (!*one)
            continue;
        char *memory = strchr(one, ':');
        if (out && have < room)
            out[have] = (struct process){(u32)atol(one), memory ? scn_number(memory + 1) : ~0ULL, ~0u, ~0u};
        have++;
    }
    *count = have;
    return (out ? have > room : have > 0) ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Field values: "gpuN.field.ID[.SCOPE] VALUE", "gpuN.field_error.ID[.SCOPE] CODE", "gpuN.field_type.ID TYPE" */

struct field_value {
    u32 id, scope;
    int64_t timestamp, latency;
    u32 type, code;
    u64 value;
};

static const char *of_field(int device, const char *what, const struct field_value *field)
{
    const char *value = scn("gpu%d.%s.%u.%u", device, what, field->id, field->scope);
    return value ? value : scn("gpu%d.%s.%u", device, what, field->id);
}

static u32 field_type(u32 id)
{
    if (id >= 193 && id <= 196)
        return 5; /* signed temperature offsets */
    if (id == 82 || id == 94 || id == 95 || (id >= 169 && id <= 199 && id != 191) || (id >= 226 && id <= 230))
        return 1;
    return 3;
}

API u32 nvmlDeviceGetFieldValues(struct device *device, int count, struct field_value *fields)
{
    ENTER(device);
    for (int i = 0; i < count; i++) {
        struct field_value *field = &fields[i];
        const char *value = of_field(device->index, "field", field);
        const char *error = of_field(device->index, "field_error", field);
        const char *type = of_field(device->index, "field_type", field);
        field->timestamp = (int64_t)time(NULL) * 1000000;
        field->latency = 1;
        field->type = type ? (u32)scn_number(type) : field_type(field->id);
        field->code = error ? (u32)scn_number(error) : value ? SUCCESS : NOT_SUPPORTED;
        field->value = 0;
        if (value && field->type == 0) {
            double number = atof(value);
            memcpy(&field->value, &number, sizeof number);
        } else if (value) {
            field->value = scn_number(value);
            if (field->type == 1 || field->type == 5)
                field->value &= 0xffffffffu; /* as the real library answers a negative 32-bit value */
        }
    }
    return SUCCESS;
}

/* GPM: "gpuN.gpm.METRIC VALUE", "gpuN.gpm_error.METRIC CODE"; supported where gpuN.gpm is 1 */

struct gpm_sample {
    int device; /* -1 until it was taken */
};

struct gpm_support {
    u32 version, supported;
};

struct gpm_metric {
    u32 id, code;
    double value;
    const char *names[3];
};

struct gpm_request {
    u32 version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[];
};

API u32 nvmlGpmQueryDeviceSupport(struct device *device, struct gpm_support *out)
{
    ENTER(device);
    const char *value = scn("gpu%d.gpm", device->index);
    out->supported = value ? (u32)scn_number(value) : 0;
    return SUCCESS;
}

API u32 nvmlGpmSampleAlloc(struct gpm_sample **out)
{
    SYSTEM();
    *out = malloc(sizeof **out);
    (*out)->device = -1;
    return SUCCESS;
}

API u32 nvmlGpmSampleFree(struct gpm_sample *sample)
{
    free(sample);
    return SUCCESS;
}

API u32 nvmlGpmSampleGet(struct device *device, struct gpm_sample *sample)
{
    ENTER(device);
    sample->device = device->index;
    return SUCCESS;
}

API u32 nvmlGpmMetricsGet(struct gpm_request *request)
{
    SYSTEM();
    CHECK_VERSION(request, 1);
    if (request->first->device < 0 || request->first->device != request->second->device)
        return INVALID_ARGUMENT;
    for (u32 i = 0; i < request->count; i++) {
        struct gpm_metric *metric = &request->metrics[i];
        const char *value = scn("gpu%d.gpm.%u", request->first->device, metric->id);
        const char *error = scn("gpu%d.gpm_error.%u", request->first->device, metric->id);
        metric->code = error ? (u32)scn_number(error) : value ? SUCCESS : NOT_SUPPORTED;
        metric->value = value ? atof(value) : 0;
    }
    return SUCCESS;
}

/* Events: "event.N DEVICE TYPE DATA", N counting from 1; each set delivers each of its devices' events once. A set
 * waits in vain once "event.lost 1" stands there, as the real one does when a GPU of it is lost. */

struct event_set {
    u64 delivered;
    u64 masks[SCN_MAX_DEVICES];
};

struct event {
    struct device *device;
    u64 type, data;
    u32 gpu_instance, compute_instance;
};

static u64 delivered; /* by any set: a set created anew does not repeat what was told */

API u32 nvmlEventSetCreate(struct event_set **out)
{
    SYSTEM();
    const char *error = scn("event.error");
    if (error)
        return (u32)scn_number(error);
    *out = calloc(1, sizeof **out);
    (*out)->delivered = delivered;
    return SUCCESS;
}

API u32 nvmlEventSetFree(struct event_set *set)
{
    free(set);
    return SUCCESS;
}

API u32 nvmlDeviceRegisterEvents(struct device *device, u64 types, struct event_set *set)
{
    ENTER(device);
    const char *value = scn("gpu%d.event_types", device->index);
    if (!value || types & ~scn_number(value))
        return NOT_SUPPORTED;
    set->masks[device->index] |= types;
    return SUCCESS;
}

API u32 nvmlEventSetWait_v2(struct event_set *set, struct event *out, u32 timeout_ms)
{
    SYSTEM();
    for (u32 waited = 0;; waited += 5) {
        const char *value;
        if (scn("event.lost"))
            return GPU_IS_LOST;
        while ((value = scn("event.%llu", set->delivered + 1))) {
            char *end;
            u64 index = strtoull(value, &end, 0), type = strtoull(end, &end, 0), data = strtoull(end, &end, 0);
            delivered = ++set->delivered;
            if (index < SCN_MAX_DEVICES && set->masks[index] & type) {
                *out = (struct event){&devices[index], type, data, ~0u, ~0u};
                return SUCCESS;
            }
        }
        if (waited >= timeout_ms)
            return TIMEOUT;
        scn_sleep_ms(5);
    }
}
