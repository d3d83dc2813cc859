/* Stands in for the library of the NVIDIA driver.
 *
 * The scenario is read from the environment variable NVML_SCENARIO at each
 * nvmlInit: words apart by spaces.
 *
 *   gpus=N          number of GPUs
 *   islands         8 GPUs: NVLink within 0-3 and within 4-7, sockets apart
 *   mig             GPU 0 is cut into two instances
 *   v1              knows memory in the first version only
 *   no_processes    does not tell which processes use a GPU
 *   pid=N           process that uses 1 GiB of each GPU; another one uses 3
 *   no_driver       the kernel's part of the driver is not loaded
 *   unsupported     no power, no PCIe counters, no utilization
 *
 * NVML_LOST names the index of a GPU that has fallen off the bus; it is read
 * at each call. With -DPARTIAL the functions of newer drivers are missing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25
};

#define GIB (1ULL << 30)
#define MIB (1ULL << 20)
#define MAX_GPUS 8
#define INSTANCES 2

/* A GPU, or an instance of one. */
typedef struct {
    int index;
    int instance; /* -1 for a whole GPU */
} Device;

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} MemoryV2;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;
typedef struct {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpuInstance, computeInstance;
} Process;
typedef struct { unsigned int gpu, memory; } Utilization;

static Device gpus[MAX_GPUS], instances[INSTANCES];
static int count, is_started;

static const char *scenario(void) {
    const char *text = getenv("NVML_SCENARIO");
    return text ? text : "";
}

static int has(const char *word) {
    const char *found = strstr(scenario(), word);
    size_t length = strlen(word);
    if (!found || (found != scenario() && found[-1] != ' ')) return 0;
    return found[length] == 0 || found[length] == ' ';
}

static int number(const char *name, int otherwise) {
    const char *found = strstr(scenario(), name);
    return found ? atoi(found + strlen(name)) : otherwise;
}

static int check(const Device *device) {
    const char *lost = getenv("NVML_LOST");
    if (!is_started) return UNINITIALIZED;
    if (!device) return INVALID_ARGUMENT;
    if (lost && *lost && atoi(lost) == device->index) return GPU_IS_LOST;
    return SUCCESS;
}

#define CHECK(device)                                       \
    do {                                                    \
        int code = check(device);                           \
        if (code != SUCCESS) return code;                   \
    } while (0)

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (has("no_driver")) return DRIVER_NOT_LOADED;
    count = has("islands") ? MAX_GPUS : number("gpus=", 1);
    for (int i = 0; i < MAX_GPUS; i++) gpus[i] = (Device){i, -1};
    for (int i = 0; i < INSTANCES; i++) instances[i] = (Device){0, i};
    is_started = 1;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!is_started) return UNINITIALIZED;
    is_started = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    switch (code) {
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case INSUFFICIENT_SIZE: return "Insufficient Size";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case 12: return "NVML Shared Library Not Found";
        case 13: return "Function Not Found";
        case GPU_IS_LOST: return "GPU is lost";
        case ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
        default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned int *result) {
    if (!is_started) return UNINITIALIZED;
    *result = count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device **device) {
    if (!is_started) return UNINITIALIZED;
    if (index >= (unsigned int)count) return INVALID_ARGUMENT;
    CHECK(&gpus[index]);
    *device = &gpus[index];
    return SUCCESS;
}

static const char *uuid_of(const Device *device) {
    static char text[96];
    if (device->instance < 0)
        snprintf(text, sizeof text, "GPU-%d1111111-aaaa-bbbb-cccc-%012d",
                 device->index, device->index);
    else
        snprintf(text, sizeof text, "MIG-%d2222222-aaaa-bbbb-cccc-%012d",
                 device->instance, device->instance);
    return text;
}

int nvmlDeviceGetUUID(Device *device, char *text, unsigned int size) {
    CHECK(device);
    snprintf(text, size, "%s", uuid_of(device));
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    Device *found = NULL;
    for (int i = 0; i < count; i++)
        if (!strcmp(uuid, uuid_of(&gpus[i]))) found = &gpus[i];
    for (int i = 0; has("mig") && i < INSTANCES; i++)
        if (!strcmp(uuid, uuid_of(&instances[i]))) found = &instances[i];
    if (!found) return NOT_FOUND;
    CHECK(found);
    *device = found;
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *text, unsigned int size) {
    CHECK(device);
    snprintf(text, size, "Stand-in GPU");
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
    CHECK(device);
    memset(info, 0, sizeof *info);
    info->bus = 0x1a + device->index;
    snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", info->bus);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    CHECK(device);
    memory->total = device->instance < 0 ? 16 * GIB : 5 * GIB;
    /* What the driver reserves is counted as used. */
    memory->used = (device->instance < 0 ? 4 : 1) * GIB + 512 * MIB;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device *device,
                                            unsigned int *size,
                                            Process *processes) {
    int pid = number("pid=", 0);
    unsigned int needed = pid ? 2 : 1;
    CHECK(device);
    if (has("no_processes")) return NOT_SUPPORTED;
    if (*size < needed || !processes) {
        *size = needed;
        return INSUFFICIENT_SIZE;
    }
    *size = needed;
    processes[0] = (Process){1, 3 * GIB, 0, 0};
    processes[1] = (Process){pid, 1 * GIB, 0, 0};
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(Device *device,
                                             unsigned int *size,
                                             Process *processes) {
    (void)processes;
    CHECK(device);
    *size = 0;
    return SUCCESS;
}

#ifndef PARTIAL
static int is_cut(const Device *device) {
    return has("mig") && device->index == 0 && device->instance < 0;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
    Memory first;
    CHECK(device);
    if (has("v1") || memory->version != (2u << 24 | sizeof *memory))
        return ARGUMENT_VERSION_MISMATCH;
    nvmlDeviceGetMemoryInfo(device, &first);
    memory->total = first.total;
    memory->free = first.free;
    memory->reserved = 512 * MIB;
    memory->used = first.used - memory->reserved;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Device *device, unsigned int *now,
                         unsigned int *later) {
    CHECK(device);
    if (!has("mig")) return NOT_SUPPORTED;
    *now = *later = is_cut(device);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned int *result) {
    CHECK(device);
    *result = is_cut(device) ? 7 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned int index,
                                        Device **instance) {
    CHECK(device);
    if (!is_cut(device) || index >= INSTANCES) return NOT_FOUND;
    *instance = &instances[index];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Device *device, unsigned int *id) {
    CHECK(device);
    *id = 7 + device->instance;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(Device *device, unsigned int *id) {
    CHECK(device);
    *id = 0;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device,
                                            unsigned int *size,
                                            Process *processes) {
    return nvmlDeviceGetComputeRunningProcesses_v2(device, size, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device,
                                             unsigned int *size,
                                             Process *processes) {
    return nvmlDeviceGetGraphicsRunningProcesses_v2(device, size, processes);
}

int nvmlDeviceGetPcieThroughput(Device *device, unsigned int counter,
                                unsigned int *result) {
    CHECK(device);
    if (has("unsupported") || device->instance >= 0) return NOT_SUPPORTED;
    *result = counter ? 2000 : 1000;
    return SUCCESS;
}
#endif

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *result) {
    CHECK(device);
    if (has("unsupported") || device->instance >= 0) return NOT_SUPPORTED;
    *result = (Utilization){75, 40};
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *device, unsigned int sensor,
                             unsigned int *result) {
    CHECK(device);
    if (sensor) return INVALID_ARGUMENT;
    *result = 61;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned int *result) {
    CHECK(device);
    if (has("unsupported")) return NOT_SUPPORTED;
    *result = 250500;
    return SUCCESS;
}

/* Half of the GPUs hang on each socket. */
static int island(const Device *device) { return device->index / 4; }

int nvmlDeviceGetTopologyCommonAncestor(Device *first, Device *second,
                                        unsigned int *level) {
    CHECK(first);
    CHECK(second);
    if (first == second)
        *level = 0;
    else
        *level = island(first) == island(second) ? 30 : 50;
    return SUCCESS;
}

/* The links of a GPU lead to the others of its island, in order. */
static Device *peer(const Device *device, unsigned int link) {
    int index = island(device) * 4 + (int)link;
    if (!has("islands") || link > 2) return NULL;
    return &gpus[index < device->index ? index : index + 1];
}

int nvmlDeviceGetNvLinkState(Device *device, unsigned int link,
                             unsigned int *is_active) {
    CHECK(device);
    if (!has("islands")) return NOT_SUPPORTED;
    if (link > 17) return INVALID_ARGUMENT;
    *is_active = peer(device, link) != NULL;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *device, unsigned int link,
                                        PciInfo *info) {
    CHECK(device);
    if (!peer(device, link)) return INVALID_ARGUMENT;
    return nvmlDeviceGetPciInfo_v3(peer(device, link), info);
}
