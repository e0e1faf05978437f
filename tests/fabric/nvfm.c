/* A stand-in for NVIDIA's libnvfm and the Fabric Manager behind it, for machines that have neither.
 *
 * The manager is a file beside the library, which every process that loads this library maps: a plugin that is killed
 * and started again meets the same manager. A copy of the library is another manager. The layouts are those of NVIDIA/go-nvfm's nv_fm_types.h; tests hold their sizes
 * against plugin/fabric/abi.py. What a test does to the manager is in functions named standin_*.
 *
 * fmLibInit, fmConnect and the rest answer as the header documents. Beyond that, for tests: a code that the next calls of
 * a function return, calls that never return, calls that carry out what was asked and never return, and a restart, which
 * loses the active partitions, or in restart mode wants their list before anything else and ends if it does not come.
 * A partition that is deactivated under a guest that runs is counted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, BADPARAM = -1, GENERIC_ERROR = -2, NOT_SUPPORTED = -3, UNINITIALIZED = -4, TIMEOUT = -5,
    VERSION_MISMATCH = -6, IN_USE = -7, NOT_CONFIGURED = -8, CONNECTION_NOT_VALID = -9, NVLINK_ERROR = -10
};
enum { INET = 1, UNIX = 2, VSOCK = 3 };
enum { MOST_GPUS = 16, MOST_PARTITIONS = 64, MOST_PORTS = 64, MOST_SWITCHES = 12 };

typedef struct {
    uint32_t version;
    char addressInfo[256];
    uint32_t timeoutMs;
    uint32_t addressIsUnixSocket;
    uint32_t addressType; /* not in version 1 */
} ConnectParams;
typedef struct {
    uint32_t physicalId;
    char uuid[80];
    char pciBusId[32];
    uint32_t numNvLinksAvailable, maxNumNvLinks, nvlinkLineRateMBps;
} GpuInfo;
typedef struct {
    uint32_t partitionId, isActive, numGpus;
    GpuInfo gpuInfo[MOST_GPUS];
} PartitionInfo;
typedef struct {
    uint32_t version, numPartitions, maxNumPartitions;
    PartitionInfo partitionInfo[MOST_PARTITIONS];
} PartitionList;
typedef struct {
    uint32_t version, numPartitions;
    uint32_t partitionIds[MOST_PARTITIONS];
} ActivatedList;
typedef struct {
    char uuid[80];
    char pciBusId[32];
    uint32_t numPorts;
    uint32_t portNum[MOST_PORTS];
} FailedDevice;
typedef struct {
    uint32_t version, numGpus, numSwitches;
    FailedDevice gpuInfo[MOST_GPUS];
    FailedDevice switchInfo[MOST_SWITCHES];
} FailedDevices;
typedef struct {
    uint32_t partitionId, numGpus;
    uint32_t gpuPhysicalIds[MOST_GPUS];
} Unsupported;
typedef struct {
    uint32_t version, numPartitions;
    Unsupported partitionInfo[MOST_PARTITIONS];
} UnsupportedList;

/* Every size that a program compiled against the header relies on; asked by the tests. */
uint32_t standin_sizes[] = {
    268, sizeof(ConnectParams), sizeof(GpuInfo), sizeof(PartitionInfo), sizeof(PartitionList), sizeof(ActivatedList),
    sizeof(FailedDevice), sizeof(FailedDevices), sizeof(Unsupported), sizeof(UnsupportedList)
};

#define VERSION(size, number) ((uint32_t)(size) | (uint32_t)(number) << 24)

enum Call { INIT, SHUTDOWN, CONNECT, DISCONNECT, GET, ACTIVATE, DEACTIVATE, SET, FAILED, UNSUPPORTED, CALLS };
static const char *const NAMES[CALLS] = {
    "init", "shutdown", "connect", "disconnect", "get", "activate", "deactivate", "set", "failed", "unsupported"
};

typedef struct {
    uint32_t gpus[MOST_PARTITIONS]; /* a bit for each physical id */
    uint32_t first;                 /* the id of the first partition */
    uint32_t partitions;
    uint32_t links; /* of a GPU; a partition of one has none */
    uint32_t active[MOST_PARTITIONS];
    uint32_t mode;        /* FABRIC_MODE */
    uint32_t is_down;     /* nobody listens */
    uint32_t life;        /* counts the starts: what was connected before is not any more */
    uint32_t newest;      /* version of fmConnectParams that is taken */
    uint32_t initialises; /* how many more questions are answered with "not configured" */
    double wants_list_until; /* of CLOCK_MONOTONIC, in restart mode before the list came; 0 otherwise */
    uint32_t dead_links;  /* physical ids whose links do not train */
    uint32_t runs;        /* physical ids that a guest runs on */
    uint32_t violations;  /* partitions that were deactivated under a guest, or activated over another's */
    int32_t code[CALLS];
    uint32_t codes[CALLS]; /* how many calls answer so */
    uint32_t hangs[CALLS]; /* how many calls never return */
    uint32_t acts[CALLS];  /* whether those carry out what was asked */
    uint32_t claims;       /* how many partitions and GPUs it says there are, if not 0 */
    uint32_t type;         /* of the address that is listened at */
    char address[256];
} Manager;

static Manager *manager;
static int file = -1;
static char here[400]; /* the library's own path */
static int is_initialised;

static void attach(void) {
    char path[512];
    Dl_info info;
    if (manager != NULL)
        return;
    if (!dladdr(&standin_sizes, &info))
        abort();
    snprintf(here, sizeof here, "%s", info.dli_fname);
    snprintf(path, sizeof path, "%s.manager", here);
    if ((file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0 || ftruncate(file, sizeof(Manager)))
        abort();
    manager = mmap(NULL, sizeof(Manager), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (manager == MAP_FAILED)
        abort();
}

static void enter(void) {
    attach();
    flock(file, LOCK_EX);
}

static int leave(int code) {
    flock(file, LOCK_UN);
    return code;
}

static void note(enum Call call, const char *what) {
    char path[512], line[512];
    snprintf(path, sizeof path, "%s.log", here);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int length = snprintf(line, sizeof line, "%s %s\n", NAMES[call], what);
    if (log < 0 || write(log, line, length) != length)
        abort();
    close(log);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* The lock is held. Whether this call is to answer with `code`, or is not to return. */
static int provoked(enum Call call, int *code) {
    if (manager->hangs[call] && !manager->acts[call]) {
        manager->hangs[call]--;
        leave(0);
        for (;;)
            pause();
    }
    if (!manager->codes[call])
        return 0;
    manager->codes[call]--;
    *code = manager->code[call];
    return 1;
}

/* The lock is held. What was asked is carried out; whether the answer never comes. */
static int answer(enum Call call, int code) {
    if (manager->hangs[call]) {
        manager->hangs[call]--;
        leave(0);
        for (;;)
            pause();
    }
    return leave(code);
}

/* The lock is held. What keeps every operation from being answered. */
static int refused(void *handle, enum Call call) {
    if (!is_initialised)
        return UNINITIALIZED;
    if (manager->wants_list_until && now() > manager->wants_list_until)
        manager->is_down = 1;
    if (manager->is_down || (uintptr_t)handle != manager->life)
        return CONNECTION_NOT_VALID;
    if (manager->mode != 1)
        return NOT_SUPPORTED;
    if (manager->initialises) {
        manager->initialises--;
        return NOT_CONFIGURED;
    }
    if (manager->wants_list_until && call != SET)
        return NOT_CONFIGURED;
    return SUCCESS;
}

int fmLibInit(void) {
    int code = is_initialised ? IN_USE : SUCCESS;
    enter();
    if (provoked(INIT, &code))
        return leave(code);
    is_initialised = 1;
    return leave(code);
}

int fmLibShutdown(void) {
    int code = is_initialised ? SUCCESS : UNINITIALIZED;
    enter();
    if (provoked(SHUTDOWN, &code))
        return leave(code);
    is_initialised = 0;
    return leave(code);
}

int fmConnect(ConnectParams *params, void **handle) {
    int code;
    uint32_t type;
    enter();
    if (provoked(CONNECT, &code))
        return leave(code);
    if (!is_initialised)
        return leave(UNINITIALIZED);
    if (params == NULL || handle == NULL)
        return leave(BADPARAM);
    if (params->version == VERSION(272, 2) && manager->newest >= 2)
        type = params->addressType;
    else if (params->version == VERSION(268, 1))
        type = params->addressIsUnixSocket ? UNIX : INET;
    else
        return leave(VERSION_MISMATCH);
    if (type < INET || type > VSOCK || params->addressIsUnixSocket != (type == UNIX) ||
        memchr(params->addressInfo, 0, sizeof params->addressInfo) == NULL)
        return leave(BADPARAM);
    if (manager->wants_list_until && now() > manager->wants_list_until)
        manager->is_down = 1;
    if (manager->is_down || params->timeoutMs == 0 || type != manager->type ||
        strcmp(params->addressInfo, manager->address))
        return leave(CONNECTION_NOT_VALID);
    *handle = (void *)(uintptr_t)manager->life;
    return leave(SUCCESS);
}

int fmDisconnect(void *handle) {
    int code = handle == NULL ? BADPARAM : !is_initialised ? UNINITIALIZED : SUCCESS;
    enter();
    if (provoked(DISCONNECT, &code))
        return leave(code);
    return leave(code);
}

int fmGetSupportedFabricPartitions(void *handle, PartitionList *list) {
    int code;
    enter();
    if (provoked(GET, &code))
        return leave(code);
    if ((code = refused(handle, GET)))
        return leave(code);
    if (list->version != VERSION(sizeof *list, 1))
        return leave(VERSION_MISMATCH);
    list->numPartitions = manager->partitions;
    list->maxNumPartitions = manager->partitions;
    for (uint32_t index = 0; index < manager->partitions; index++) {
        PartitionInfo *partition = &list->partitionInfo[index];
        uint32_t gpus = manager->gpus[index];
        partition->partitionId = manager->first + index;
        partition->isActive = manager->active[index];
        partition->numGpus = 0;
        for (uint32_t id = 0; id < 32; id++)
            if (gpus >> id & 1) {
                GpuInfo *gpu = &partition->gpuInfo[partition->numGpus++];
                gpu->physicalId = id;
                /* As on an H100 whose manager sees no GPU: neither UUID nor address. */
                strcpy(gpu->pciBusId, "00000000:00:00.0");
                gpu->maxNumNvLinks = manager->links;
                gpu->numNvLinksAvailable = gpus & (gpus - 1) ? manager->links : 0;
                gpu->nvlinkLineRateMBps = 26562;
            }
    }
    if (manager->claims) {
        list->numPartitions = manager->claims;
        list->partitionInfo[0].numGpus = manager->claims;
    }
    return answer(GET, SUCCESS);
}

int fmActivateFabricPartition(void *handle, uint32_t id) {
    int code;
    char what[64];
    enter();
    if (provoked(ACTIVATE, &code))
        return leave(code);
    if ((code = refused(handle, ACTIVATE)))
        return leave(code);
    uint32_t index = id - manager->first;
    if (id < manager->first || index >= manager->partitions)
        return leave(BADPARAM);
    for (uint32_t other = 0; other < manager->partitions; other++)
        if (manager->active[other] && manager->gpus[other] & manager->gpus[index])
            return leave(IN_USE);
    if (manager->gpus[index] & (manager->gpus[index] - 1) && manager->gpus[index] & manager->dead_links)
        return leave(NVLINK_ERROR);
    manager->active[index] = 1;
    snprintf(what, sizeof what, "%u", id);
    note(ACTIVATE, what);
    return answer(ACTIVATE, SUCCESS);
}

int fmDeactivateFabricPartition(void *handle, uint32_t id) {
    int code;
    char what[64];
    enter();
    if (provoked(DEACTIVATE, &code))
        return leave(code);
    if ((code = refused(handle, DEACTIVATE)))
        return leave(code);
    uint32_t index = id - manager->first;
    if (id < manager->first || index >= manager->partitions)
        return leave(BADPARAM);
    if (!manager->active[index])
        return leave(UNINITIALIZED);
    if (manager->gpus[index] & manager->runs)
        manager->violations++;
    manager->active[index] = 0;
    snprintf(what, sizeof what, "%u", id);
    note(DEACTIVATE, what);
    return answer(DEACTIVATE, SUCCESS);
}

int fmSetActivatedFabricPartitions(void *handle, ActivatedList *list) {
    int code;
    char what[400] = "";
    enter();
    if (provoked(SET, &code))
        return leave(code);
    if ((code = refused(handle, SET)))
        return leave(code);
    if (list->version != VERSION(sizeof *list, 1))
        return leave(VERSION_MISMATCH);
    if (!manager->wants_list_until)
        return leave(NOT_SUPPORTED);
    if (list->numPartitions > MOST_PARTITIONS)
        return leave(BADPARAM);
    for (uint32_t index = 0; index < list->numPartitions; index++) {
        uint32_t its = list->partitionIds[index] - manager->first;
        if (list->partitionIds[index] < manager->first || its >= manager->partitions)
            return leave(BADPARAM);
        manager->active[its] = 1;
        snprintf(what + strlen(what), sizeof what - strlen(what), "%s%u", index ? "," : "", list->partitionIds[index]);
    }
    manager->wants_list_until = 0;
    note(SET, what);
    return answer(SET, SUCCESS);
}

int fmGetNvlinkFailedDevices(void *handle, FailedDevices *devices) {
    int code;
    enter();
    if (provoked(FAILED, &code))
        return leave(code);
    if ((code = refused(handle, FAILED)))
        return leave(code);
    if (devices->version != VERSION(sizeof *devices, 1))
        return leave(VERSION_MISMATCH);
    devices->numGpus = devices->numSwitches = 0;
    for (uint32_t id = 0; id < 32 && devices->numGpus < MOST_GPUS; id++)
        if (manager->dead_links >> id & 1) {
            FailedDevice *gpu = &devices->gpuInfo[devices->numGpus++];
            snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-%u", id);
            snprintf(gpu->pciBusId, sizeof gpu->pciBusId, "00000000:%02X:00.0", id);
            gpu->numPorts = 1;
        }
    return answer(FAILED, SUCCESS);
}

int fmGetUnsupportedFabricPartitions(void *handle, UnsupportedList *list) {
    int code;
    enter();
    if (provoked(UNSUPPORTED, &code))
        return leave(code);
    if ((code = refused(handle, UNSUPPORTED)))
        return leave(code);
    if (list->version != VERSION(sizeof *list, 1))
        return leave(VERSION_MISMATCH);
    list->numPartitions = 0;
    return answer(UNSUPPORTED, SUCCESS);
}

/* What a test does to the manager. */

void standin_start(const char *address, uint32_t type, const uint32_t *gpus, uint32_t partitions, uint32_t first) {
    enter();
    memset(manager, 0, sizeof *manager);
    memcpy(manager->gpus, gpus, partitions * sizeof *gpus);
    manager->partitions = partitions;
    manager->first = first;
    manager->links = 18;
    manager->mode = 1;
    manager->life = 1;
    manager->newest = 2;
    manager->type = type;
    snprintf(manager->address, sizeof manager->address, "%s", address);
    leave(0);
}

void standin_mode(uint32_t mode) {
    enter();
    manager->mode = mode;
    leave(0);
}

void standin_newest(uint32_t version) {
    enter();
    manager->newest = version;
    leave(0);
}

void standin_claims(uint32_t number) {
    enter();
    manager->claims = number;
    leave(0);
}

void standin_provoke(uint32_t call, int32_t code, uint32_t times) {
    enter();
    manager->code[call] = code;
    manager->codes[call] = times;
    leave(0);
}

void standin_hang(uint32_t call, uint32_t times, uint32_t acts) {
    enter();
    manager->hangs[call] = times;
    manager->acts[call] = acts;
    leave(0);
}

uint32_t standin_hangs(uint32_t call) {
    enter();
    uint32_t hangs = manager->hangs[call];
    leave(0);
    return hangs;
}

void standin_stop(void) {
    enter();
    manager->is_down = 1;
    leave(0);
}

/* Start again: with nothing active; or in restart mode, where the list has to come within `seconds`. */
void standin_restart(uint32_t initialises, double seconds) {
    enter();
    manager->is_down = 0;
    manager->life++;
    manager->initialises = initialises;
    manager->wants_list_until = seconds ? now() + seconds : 0;
    memset(manager->active, 0, sizeof manager->active);
    leave(0);
}

void standin_links(uint32_t dead) {
    enter();
    manager->dead_links = dead;
    leave(0);
}

void standin_runs(uint32_t gpus) {
    enter();
    manager->runs = gpus;
    leave(0);
}

/* As another program would: whatever is active. */
void standin_set_active(uint32_t id, uint32_t active) {
    enter();
    manager->active[id - manager->first] = active;
    leave(0);
}

uint32_t standin_is_active(uint32_t id) {
    enter();
    uint32_t active = manager->active[id - manager->first];
    leave(0);
    return active;
}

uint32_t standin_violations(void) {
    enter();
    uint32_t violations = manager->violations;
    leave(0);
    return violations;
}

uint32_t standin_is_down(void) {
    enter();
    uint32_t is_down = manager->is_down || (manager->wants_list_until && now() > manager->wants_list_until);
    leave(0);
    return is_down;
}
