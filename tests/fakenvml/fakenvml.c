/* A libnvidia-ml.so.1 that shows GPUs which are not there, so that the real pynvml can be tested without one.
 *
 *     cc -shared -fPIC -O1 -Wall -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fakenvml.c
 *
 * FAKE_NVML_COUNT   number of GPUs (default 1, at most 32)
 * FAKE_NVML_STATE   a text file, read anew on every call. Each line is `SCOPE KEY VALUE…`; the last match wins.
 *
 *   system init 18               what nvmlInit returns            system driver 550.54.15      system cuda 12040
 *   0 name NVIDIA A100-SXM4-40GB             `*` instead of the index speaks of every GPU
 *   0 handle 15                  what asking for the handle returns;  `0 every 15`: what every call on it returns
 *   0 fail-NAME 3                what one query returns; NAME is its KEY below (`fail-memory`, `fail-recovery`, …)
 *   0 memory 81559 4             MiB total, MiB used       0 capability 9 0        0 utilization 97
 *   0 process 4321 30000         pid, MiB; may be repeated (pid, 0: the driver does not tell how much)
 *   0 ecc 2    0 remap 0 1 1 0 (correctable, uncorrectable, pending, failed)    0 recovery 1    0 throttle 0x40
 *   0 power 350 700 (W: now, limit)         0 clock 1200 1980 (MHz of the SMs: now, most)
 *   0 temperature 33    0 mode 3    0 mig 1    0 instances 2
 *
 * Struct layouts and numbers: https://docs.nvidia.com/deploy/nvml-api/
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Return;
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { MOST_GPUS = 32, MOST_INSTANCES = 7, RECOVERY_ACTION = 230, UNSIGNED_INT = 1 };

typedef struct { int gpu, instance; } Device; /* instance is -1 for the whole GPU */
static Device whole[MOST_GPUS], slices[MOST_GPUS][MOST_INSTANCES];
static int started;

static unsigned count(void) {
    const char *text = getenv("FAKE_NVML_COUNT");
    int number = text ? atoi(text) : 1;
    return number < 0 ? 0 : number > MOST_GPUS ? MOST_GPUS : (unsigned)number;
}

/* Copies the value of the nth line (or the last, nth < 0) about key of this scope; returns how many lines there were. */
static int look(const char *scope, const char *key, int nth, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512], who[32], what[64];
    int matches = 0, skip;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%31s %63s %n", who, what, &skip) < 2 || strcmp(what, key)) continue;
        if (strcmp(who, scope) && (strcmp(who, "*") || !strcmp(scope, "system"))) continue;
        if (nth < 0 || matches == nth) snprintf(value, size, "%s", line + skip);
        matches++;
    }
    if (file) fclose(file);
    return matches;
}

static int find(int gpu, const char *key, char *value, size_t size) {
    char scope[16];
    snprintf(scope, sizeof scope, "%d", gpu);
    return look(scope, key, -1, value, size);
}

static unsigned long long number(int gpu, const char *key, unsigned long long otherwise) {
    char value[512];
    return find(gpu, key, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

/* The error that the state file wants from query `key` on this device. */
static Return barrier(Device *device, const char *key) {
    char name[80];
    Return every;
    if (!started) return UNINITIALIZED;
    if (!device) return INVALID_ARGUMENT;
    if ((every = (Return)number(device->gpu, "every", 0))) return every;
    snprintf(name, sizeof name, "fail-%s", key);
    return (Return)number(device->gpu, name, 0);
}
#define ASK(device, key) do { Return r_ = barrier(device, key); if (r_) return r_; } while (0)

static Return text(char *out, unsigned size, const char *value) {
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

static Return system_text(const char *key, const char *otherwise, char *out, unsigned size) {
    char value[512];
    return text(out, size, look("system", key, -1, value, sizeof value) ? value : otherwise);
}

Return nvmlInitWithFlags(unsigned flags) {
    char value[512];
    int wanted = look("system", "init", -1, value, sizeof value) ? atoi(value) : SUCCESS;
    (void)flags;
    for (int gpu = 0; gpu < MOST_GPUS; gpu++) {
        whole[gpu] = (Device){gpu, -1};
        for (int i = 0; i < MOST_INSTANCES; i++) slices[gpu][i] = (Device){gpu, i};
    }
    started = wanted == SUCCESS;
    return wanted;
}
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlInit(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { started = 0; return SUCCESS; }

const char *nvmlErrorString(Return code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

Return nvmlSystemGetDriverVersion(char *out, unsigned size) { return system_text("driver", "570.124.06", out, size); }
Return nvmlSystemGetNVMLVersion(char *out, unsigned size) { return system_text("nvml", "12.570.124.06", out, size); }
Return nvmlSystemGetCudaDriverVersion_v2(int *version) {
    char value[64];
    *version = look("system", "cuda", -1, value, sizeof value) ? atoi(value) : 12080;
    return SUCCESS;
}
Return nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

Return nvmlDeviceGetCount_v2(unsigned *out) {
    if (!started) return UNINITIALIZED;
    *out = count();
    return SUCCESS;
}
Return nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    if (!started) return UNINITIALIZED;
    if (index >= count()) return INVALID_ARGUMENT;
    *out = &whole[index];
    return (Return)number((int)index, "handle", SUCCESS);
}
Return nvmlDeviceGetHandleByIndex(unsigned index, Device **out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

Return nvmlDeviceGetUUID(Device *device, char *out, unsigned size) {
    char value[96];
    ASK(device, "uuid");
    if (device->instance < 0) snprintf(value, sizeof value, "GPU-%08x-5a1e-4000-8000-000000000000", device->gpu * 0x1111 + 0xa0);
    else snprintf(value, sizeof value, "MIG-%08x-5a1e-4000-8000-%012d", device->gpu * 0x1111 + 0xa0, device->instance);
    return text(out, size, value);
}

Return nvmlDeviceGetName(Device *device, char *out, unsigned size) {
    char value[512], full[600];
    ASK(device, "name");
    if (!find(device->gpu, "name", value, sizeof value)) strcpy(value, "NVIDIA H100 80GB HBM3");
    snprintf(full, sizeof full, device->instance < 0 ? "%s" : "%s MIG 1g.10gb", value);
    return text(out, size, full);
}

typedef struct { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char id[32]; } Pci;
Return nvmlDeviceGetPciInfo_v3(Device *device, Pci *out) {
    ASK(device, "pci");
    memset(out, 0, sizeof *out);
    out->bus = 0x10u + (unsigned)device->gpu;
    snprintf(out->id, sizeof out->id, "00000000:%02X:00.0", out->bus);
    return SUCCESS;
}

typedef struct { unsigned long long total, available, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, available, used; } Memory2;
static void memory(Device *device, unsigned long long *total, unsigned long long *used) {
    char value[512];
    *total = 81559, *used = 4;
    if (find(device->gpu, "memory", value, sizeof value)) sscanf(value, "%llu %llu", total, used);
    if (device->instance >= 0) *total = 9728, *used = 12;
    *total <<= 20, *used <<= 20;
}
Return nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    ASK(device, "memory");
    memory(device, &out->total, &out->used);
    out->used += 600ull << 20; /* version 1 counts what the driver reserves as used */
    out->available = out->total - out->used;
    return SUCCESS;
}
Return nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *out) {
    ASK(device, "memory");
    if (number(device->gpu, "old-memory", 0)) return NOT_SUPPORTED;
    memory(device, &out->total, &out->used);
    out->reserved = 600ull << 20;
    out->available = out->total - out->used - out->reserved;
    return SUCCESS;
}

Return nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    char value[512];
    ASK(device, "capability");
    *major = 9, *minor = 0;
    if (find(device->gpu, "capability", value, sizeof value)) sscanf(value, "%d %d", major, minor);
    return SUCCESS;
}

Return nvmlDeviceGetUtilizationRates(Device *device, unsigned *out) {
    ASK(device, "utilization");
    if (number(device->gpu, "mig", 0)) return NOT_SUPPORTED; /* as the driver does with MIG on */
    out[0] = (unsigned)number(device->gpu, "utilization", 0), out[1] = 0;
    return SUCCESS;
}

static unsigned nth(Device *device, const char *key, int second, unsigned first, unsigned other) {
    char value[512];
    if (find(device->gpu, key, value, sizeof value)) sscanf(value, "%u %u", &first, &other);
    return second ? other : first;
}
Return nvmlDeviceGetPowerUsage(Device *device, unsigned *out) {
    ASK(device, "power");
    *out = nth(device, "power", 0, 70, 700) * 1000;
    return SUCCESS;
}
Return nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *out) {
    ASK(device, "power");
    *out = nth(device, "power", 1, 70, 700) * 1000;
    return SUCCESS;
}
Return nvmlDeviceGetClockInfo(Device *device, unsigned kind, unsigned *out) {
    ASK(device, "clock");
    *out = kind == 1 ? nth(device, "clock", 0, 345, 1980) : 0;
    return SUCCESS;
}
Return nvmlDeviceGetMaxClockInfo(Device *device, unsigned kind, unsigned *out) {
    ASK(device, "clock");
    *out = kind == 1 ? nth(device, "clock", 1, 345, 1980) : 0;
    return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
Return nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *room, Process *out) {
    char scope[16], value[512];
    int have;
    unsigned long long mib;
    ASK(device, "process");
    snprintf(scope, sizeof scope, "%d", device->gpu);
    have = look(scope, "process", -1, value, sizeof value);
    if (!have) { *room = 0; return SUCCESS; }
    if ((int)*room < have) { *room = (unsigned)have; return INSUFFICIENT_SIZE; }
    for (int i = 0; i < have; i++) {
        look(scope, "process", i, value, sizeof value);
        out[i] = (Process){0, 0, ~0u, ~0u}, mib = 0;
        sscanf(value, "%u %llu", &out[i].pid, &mib);
        out[i].used = mib ? mib << 20 : ~0ull;
    }
    *room = (unsigned)have;
    return SUCCESS;
}

Return nvmlDeviceGetTotalEccErrors(Device *device, unsigned uncorrected, unsigned counter, unsigned long long *out) {
    ASK(device, "ecc");
    *out = uncorrected == 1 && counter == 0 ? number(device->gpu, "ecc", 0) : 0;
    return SUCCESS;
}

Return nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    char value[512];
    ASK(device, "remap");
    *corrected = *uncorrected = *pending = *failed = 0;
    if (find(device->gpu, "remap", value, sizeof value)) sscanf(value, "%u %u %u %u", corrected, uncorrected, pending, failed);
    return SUCCESS;
}

typedef struct { unsigned field, scope; long long timestamp, latency; unsigned type; Return result; union { unsigned ui; unsigned long long ull; } value; } Field;
Return nvmlDeviceGetFieldValues(Device *device, int fields, Field *out) {
    if (!started) return UNINITIALIZED;
    for (int i = 0; i < fields; i++) {
        out[i].result = out[i].field == RECOVERY_ACTION ? barrier(device, "recovery") : NOT_SUPPORTED;
        out[i].type = UNSIGNED_INT;
        out[i].value.ui = (unsigned)number(device->gpu, "recovery", 0);
    }
    return SUCCESS;
}

Return nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *out) {
    ASK(device, "throttle");
    *out = number(device->gpu, "throttle", 1); /* 1: the GPU is idle, which slows nothing down */
    return SUCCESS;
}

Return nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *out) {
    ASK(device, "temperature");
    (void)sensor;
    *out = (unsigned)number(device->gpu, "temperature", 33);
    return SUCCESS;
}

Return nvmlDeviceGetComputeMode(Device *device, unsigned *out) {
    ASK(device, "mode");
    *out = (unsigned)number(device->gpu, "mode", 0);
    return SUCCESS;
}

Return nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    ASK(device, "mig");
    *current = *pending = (unsigned)number(device->gpu, "mig", 0);
    return SUCCESS;
}
Return nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *out) {
    ASK(device, "mig");
    *out = MOST_INSTANCES;
    return SUCCESS;
}
Return nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **out) {
    ASK(device, "mig");
    if (!number(device->gpu, "mig", 0) || index >= MOST_INSTANCES) return INVALID_ARGUMENT;
    if (index >= number(device->gpu, "instances", 0)) return NOT_FOUND;
    *out = &slices[device->gpu][index];
    return SUCCESS;
}
