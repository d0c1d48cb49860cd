#pragma once

/**
 * Expert balancing for engines in any language: plans, dispatch tables and shares, moves, statistics, drift.
 *
 * Rules of this interface (C99):
 *  - Arrays are dense and row-major; the caller owns every array; sizes follow from the shape.
 *  - A function that can fail returns 0 or one of the codes below and writes what was wrong, with the value
 *    and the fix, to `error` (at most error_bytes with the final zero; NULL or 0 bytes: not at all). On
 *    failure outputs are unspecified and handles are unchanged.
 *  - No function throws, prints, or keeps a pointer. Functions without a handle may be called from any
 *    thread at any time; one handle is used by one thread at a time.
 *  - Same inputs, same bytes: on every machine, at every number of threads.
 *  - Option structs are filled by their _default function first, so that code compiled against this header
 *    keeps working with later libraries.
 * Words: an expert is logical, a slot physical; rank r owns the slots [r * slots / ranks, (r + 1) * slots /
 * ranks). A map gives the expert of each slot (physical_to_logical).
 */

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TRIMTAB_API __attribute__((visibility("default")))
#else
#define TRIMTAB_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function or struct changes in a way that old callers would notice. */
#define TRIMTAB_EXPERTS_ABI 1

enum {
  TRIMTAB_OK = 0,
  TRIMTAB_INVALID_ARGUMENT = 1,
  TRIMTAB_RESOURCE_EXHAUSTED = 2, /* memory, or a limit of the configuration */
  TRIMTAB_INTERNAL = 3
};

/* Type of an array of loads (tokens per step, layer and expert). */
enum { TRIMTAB_INT32 = 0, TRIMTAB_INT64 = 1, TRIMTAB_FLOAT = 2, TRIMTAB_DOUBLE = 3 };

/* "0.1.0". */
TRIMTAB_API const char* trimtab_experts_version(void);
/* TRIMTAB_EXPERTS_ABI of the library; compare with the header's. */
TRIMTAB_API int32_t trimtab_experts_abi(void);

typedef struct trimtab_shape {
  int32_t experts; /* logical */
  int32_t slots;   /* physical, of all ranks: a multiple of ranks, at least experts */
  int32_t ranks;
  int32_t nodes;  /* 1 unless hierarchical or locality matters */
  int32_t groups; /* of experts; 1 for a model without */
} trimtab_shape;

/* experts + redundant rounded up to a multiple of ranks; -1 when an argument is negative or ranks is 0. */
TRIMTAB_API int64_t trimtab_physical_slots(int64_t experts, int64_t redundant, int64_t ranks);
TRIMTAB_API int32_t trimtab_shape_check(const trimtab_shape* shape, char* error, size_t error_bytes);
/* map [slots]: experts 0, 1, 2 ... then copies of 0, 1, 2 ...: how engines start. */
TRIMTAB_API int32_t trimtab_initial_map(const trimtab_shape* shape, int32_t* map, char* error,
                                        size_t error_bytes);

/* ---- Plans ---------------------------------------------------------------------------------------- */

enum { TRIMTAB_START_FRESH = 0, TRIMTAB_START_INCREMENTAL = 1 };
enum { TRIMTAB_SCOPE_GLOBAL = 0, TRIMTAB_SCOPE_HIERARCHICAL = 1 };
enum { TRIMTAB_EFFORT_FAST = 0, TRIMTAB_EFFORT_DEFAULT = 1, TRIMTAB_EFFORT_QUALITY = 2 };

typedef struct trimtab_plan_options {
  uint32_t struct_bytes;
  int32_t start, scope, effort;
  int32_t moves_max;    /* incremental: received copies a layer at most; negative: no cap */
  int32_t threads;      /* layers in parallel; 0: all cores */
  double move_price;    /* incremental: part of the sum of peaks one copy must save; negative: default */
  double recency_steps; /* a step of that age weighs 1/e; 0: all alike */
  uint64_t seed;
} trimtab_plan_options;
TRIMTAB_API void trimtab_plan_options_default(trimtab_plan_options* options);

typedef struct trimtab_plan_reason {
  double balance_before; /* busiest over mean rank on the window; 0 without a current map */
  double balance;        /* what the plan promises */
  int64_t received;      /* copies that ranks must receive */
  int64_t swaps, replacements, walk_steps;
} trimtab_plan_reason;

/*
 * loads: [steps, layers, experts] of load_type, oldest step first. current: [layers, current_slots], the maps
 * in force, or NULL (current_slots 0). maps: out, [layers, slots]. reasons: out, [layers], or NULL. options:
 * NULL for defaults. Every plan: each expert has a slot, no rank holds one twice.
 */
TRIMTAB_API int32_t trimtab_plan_layers(const trimtab_shape* shape, const void* loads, int32_t load_type,
                                        int32_t steps, int32_t layers, const int32_t* current,
                                        int32_t current_slots, const trimtab_plan_options* options,
                                        int32_t* maps, trimtab_plan_reason* reasons, char* error,
                                        size_t error_bytes);
/* One layer: loads [steps, experts] whose rows lie step_stride elements apart. */
TRIMTAB_API int32_t trimtab_plan_layer(const trimtab_shape* shape, const void* loads, int32_t load_type,
                                       int32_t steps, int64_t step_stride, const int32_t* current,
                                       int32_t current_slots, const trimtab_plan_options* options,
                                       int32_t* map, trimtab_plan_reason* reason, char* error,
                                       size_t error_bytes);
/*
 * Ranks were lost or gained. before: [old->slots]. survivors: [shape->ranks], the old rank that each rank
 * was, -1 for a new one. No expert ends without a copy.
 */
TRIMTAB_API int32_t trimtab_replan_ranks(const trimtab_shape* old, const int32_t* before,
                                         const trimtab_shape* shape, const int32_t* survivors,
                                         const void* loads, int32_t load_type, int32_t steps,
                                         int64_t step_stride, const trimtab_plan_options* options,
                                         int32_t* map, trimtab_plan_reason* reason, char* error,
                                         size_t error_bytes);

/*
 * With the arguments and the order of results of DeepSeek's eplb.py. weight: [layers, experts]. Out:
 * physical_to_logical [layers, num_replicas]; logical_to_physical [layers, experts, copies_max] padded with
 * -1 (copies_max: the width of the caller's array, num_gpus is always enough); logical_count [layers,
 * experts]. num_groups that num_nodes does not divide is an error, unless allow_global is set: then nodes are
 * ignored, as DeepSeek does without a word.
 */
TRIMTAB_API int32_t trimtab_rebalance_experts(const void* weight, int32_t load_type, int32_t layers,
                                              int32_t experts, int32_t num_replicas, int32_t num_groups,
                                              int32_t num_nodes, int32_t num_gpus, int32_t allow_global,
                                              int32_t threads, int32_t* physical_to_logical,
                                              int32_t* logical_to_physical, int32_t copies_max,
                                              int32_t* logical_count, char* error, size_t error_bytes);
/*
 * With the arguments of DeepInfer's: tokens_per_expert [steps, layers, experts]; num_physical slots in all,
 * num_local_physical on each rank. Out as above.
 */
TRIMTAB_API int32_t trimtab_rebalance_global(const void* tokens_per_expert, int32_t load_type, int32_t steps,
                                             int32_t layers, int32_t experts, int32_t num_physical,
                                             int32_t num_local_physical, int32_t threads,
                                             int32_t* physical_to_logical, int32_t* logical_to_physical,
                                             int32_t copies_max, int32_t* logical_count, char* error,
                                             size_t error_bytes);

typedef struct trimtab_balance {
  double of_sums;    /* sum over steps of the busiest rank over sum of the mean rank; 1 is perfect */
  double mean_ratio; /* mean over steps of busiest over mean */
} trimtab_balance;
/* Balance of each layer's map on loads. maps: [layers, slots]; loads: [steps, layers, experts]; out:
 * [layers].
 */
TRIMTAB_API int32_t trimtab_balance_of(const trimtab_shape* shape, const int32_t* maps, const void* loads,
                                       int32_t load_type, int32_t steps, int32_t layers, trimtab_balance* out,
                                       char* error, size_t error_bytes);

/* ---- Dispatch -------------------------------------------------------------------------------------- */

/* Slots of every expert in ascending order. maps: [layers, slots]; outputs as in trimtab_rebalance_experts.
 */
TRIMTAB_API int32_t trimtab_tables(const trimtab_shape* shape, const int32_t* maps, int32_t layers,
                                   int32_t* logical_to_physical, int32_t copies_max, int32_t* logical_count,
                                   char* error, size_t error_bytes);
/* (rank + token * 23333) mod copies: which copy a token takes when nothing is known. -1 on bad arguments. */
TRIMTAB_API int32_t trimtab_replica_of(int64_t rank, int64_t token, int32_t copies);

typedef struct trimtab_shares trimtab_shares; /* the solver and the table of one layer and map */
typedef struct trimtab_share_result {
  double peak_tokens;  /* busiest rank under the shares */
  double bound_tokens; /* what no shares can beat */
  double mean_tokens;
} trimtab_share_result;

/* parts: a power of two from 2 to 256; 64 is well tried. */
TRIMTAB_API int32_t trimtab_shares_create(const trimtab_shape* shape, const int32_t* map, int32_t parts,
                                          trimtab_shares** out, char* error, size_t error_bytes);
TRIMTAB_API void trimtab_shares_destroy(trimtab_shares* shares);
/*
 * Least possible peak for tokens [experts], and the table quantised from it. shares: out, [slots], part of
 * its expert that each slot takes, or NULL. result: or NULL.
 */
TRIMTAB_API int32_t trimtab_shares_solve(trimtab_shares* shares, const double* tokens, double* slot_shares,
                                         trimtab_share_result* result, char* error, size_t error_bytes);
/* Columns of the table: the most copies in the map. */
TRIMTAB_API int32_t trimtab_shares_copies_max(const trimtab_shares* shares);
/* table: out, [experts, copies_max] in parts, columns as in logical_to_physical. */
TRIMTAB_API int32_t trimtab_shares_table(const trimtab_shares* shares, uint16_t* table, char* error,
                                         size_t error_bytes);
/* Slot of choice `index` of the `tokens` that `rank` routes to `expert` in this step; -1 on bad arguments. */
TRIMTAB_API int32_t trimtab_shares_slot(const trimtab_shares* shares, int32_t expert, int32_t rank,
                                        int64_t index, int64_t tokens);

/* ---- Moves ------------------------------------------------------------------------------------------ */

typedef struct trimtab_move_options {
  uint32_t struct_bytes;
  int32_t staging_slots; /* extra slots per rank that can hold a copy meanwhile; 1 is enough */
  int32_t keep_old_map;  /* nothing of the old map is overwritten until all copies are there */
  int32_t same_node_first;
  int64_t bytes_per_copy;
  int64_t link_bytes_per_s, node_link_bytes_per_s, local_bytes_per_s;
  int64_t stall_ns; /* a batch takes no longer on any rank; 0: no bound */
} trimtab_move_options;
TRIMTAB_API void trimtab_move_options_default(trimtab_move_options* options);

enum { TRIMTAB_MOVE_LOCAL = 0, TRIMTAB_MOVE_SEND = 1, TRIMTAB_MOVE_RELOAD = 2 };
typedef struct trimtab_move {
  int32_t kind, expert;
  int32_t from_host, from_slot; /* -1, -1 for a reload */
  int32_t to_host, to_slot;     /* slots from `width` on are staging */
} trimtab_move;

typedef struct trimtab_move_summary {
  int32_t hosts;   /* new ranks, then old ranks that leave */
  int32_t width;   /* slots per host without staging */
  int32_t staging; /* slots per host behind them */
  int32_t batches, slices, commit_batch, staging_used, staging_serves, reloaded;
  int64_t received, sends_max, sends_max_bound, receives_max, stall_ns;
} trimtab_move_summary;

typedef struct trimtab_move_plan trimtab_move_plan;

/*
 * before: [old->slots], after: [shape->slots]. rank_before: [shape->ranks], the old rank of each new one, -1
 * new; NULL: rank r was rank r. lost: [lost_count], old ranks whose memory is gone.
 */
TRIMTAB_API int32_t trimtab_move_plan_create(const trimtab_shape* old, const int32_t* before,
                                             const trimtab_shape* shape, const int32_t* after,
                                             const int32_t* rank_before, const int32_t* lost,
                                             int32_t lost_count, const trimtab_move_options* options,
                                             trimtab_move_plan** out, char* error, size_t error_bytes);
TRIMTAB_API void trimtab_move_plan_destroy(trimtab_move_plan* plan);
TRIMTAB_API int32_t trimtab_move_plan_summary(const trimtab_move_plan* plan, trimtab_move_summary* out,
                                              char* error, size_t error_bytes);
/* Moves of a batch; -1 when there is no such batch. */
TRIMTAB_API int32_t trimtab_move_plan_batch_size(const trimtab_move_plan* plan, int32_t batch);
TRIMTAB_API int32_t trimtab_move_plan_batch(const trimtab_move_plan* plan, int32_t batch, trimtab_move* moves,
                                            char* error, size_t error_bytes);
/* Copies that each host sends, receives, copies within itself and reloads: [hosts, 4]. */
TRIMTAB_API int32_t trimtab_move_plan_hosts(const trimtab_move_plan* plan, int64_t* counts, char* error,
                                            size_t error_bytes);
/*
 * places: out, [hosts, width + staging]: the expert that may be read there before the batch starts, or while
 * it runs; -1: none. batch == batches: at the end.
 */
TRIMTAB_API int32_t trimtab_move_plan_valid(const trimtab_move_plan* plan, int32_t batch, int32_t running,
                                            int32_t* places, char* error, size_t error_bytes);

/* ---- Statistics ------------------------------------------------------------------------------------- */

enum { TRIMTAB_PHASE_PREFILL = 0, TRIMTAB_PHASE_DECODE = 1 };
typedef struct trimtab_statistics_config {
  uint32_t struct_bytes;
  trimtab_shape shape;
  int32_t layers;
  int32_t window_steps;   /* N */
  int32_t local_rank;     /* -1: all ranks report here; else the one that does */
  int64_t interval_steps; /* M; 0: never due */
  int64_t memory_bytes_max;
} trimtab_statistics_config;
/* Prefill: N 100, M 1,000, 4 redundant slots a rank; decode: 1,000, 10,000, 1. */
TRIMTAB_API int32_t trimtab_statistics_preset(int32_t phase, int32_t experts, int32_t ranks, int32_t layers,
                                              trimtab_statistics_config* config, char* error,
                                              size_t error_bytes);
/* What the ring takes; -1 for a bad configuration. */
TRIMTAB_API int64_t trimtab_statistics_memory_bytes(const trimtab_statistics_config* config);

typedef struct trimtab_statistics trimtab_statistics;
/* maps: [layers, slots], in force. */
TRIMTAB_API int32_t trimtab_statistics_create(const trimtab_statistics_config* config, const int32_t* maps,
                                              trimtab_statistics** out, char* error, size_t error_bytes);
TRIMTAB_API void trimtab_statistics_destroy(trimtab_statistics* statistics);
/* map: [slots], in force from the open step on. */
TRIMTAB_API int32_t trimtab_statistics_set_map(trimtab_statistics* statistics, int32_t layer,
                                               const int32_t* map, char* error, size_t error_bytes);
/* counts: [layers, slots_per_rank] of the open step; padding: of that shape, to be taken off, or NULL. */
TRIMTAB_API int32_t trimtab_statistics_add(trimtab_statistics* statistics, int32_t rank,
                                           const int32_t* counts, const int32_t* padding, char* error,
                                           size_t error_bytes);
enum { TRIMTAB_STEP_RECORDED = 0, TRIMTAB_STEP_IGNORED = 1, TRIMTAB_STEP_INCOMPLETE = 2 };
/* ignore: warm-up, or prefill in a decode engine. Returns one of the above, -1 for a NULL handle. */
TRIMTAB_API int32_t trimtab_statistics_end_step(trimtab_statistics* statistics, int32_t ignore);
/* 1 when a re-placement is due, until restart_interval. */
TRIMTAB_API int32_t trimtab_statistics_due(const trimtab_statistics* statistics);
TRIMTAB_API int64_t trimtab_statistics_overdue_steps(const trimtab_statistics* statistics);
TRIMTAB_API void trimtab_statistics_restart_interval(trimtab_statistics* statistics);
/* Steps in the window, at most N. */
TRIMTAB_API int32_t trimtab_statistics_steps(const trimtab_statistics* statistics);
/* loads: out, [steps, layers, experts], oldest first. */
TRIMTAB_API int32_t trimtab_statistics_windows(const trimtab_statistics* statistics, int64_t* loads,
                                               char* error, size_t error_bytes);
/* Measured over the last `steps` steps, all layers: sum of busiest over sum of mean ranks. */
TRIMTAB_API double trimtab_statistics_balance(const trimtab_statistics* statistics, int32_t steps);

/* ---- Drift ------------------------------------------------------------------------------------------ */

typedef struct trimtab_drift_config {
  uint32_t struct_bytes;
  int32_t ranks;
  int32_t layers; /* of how many layers trimtab_drift_observe is given the sums */
  int32_t steps_max, steps_min, confirm_steps, quiet_steps;
  double tolerance, sigmas;
} trimtab_drift_config;
TRIMTAB_API void trimtab_drift_config_default(trimtab_drift_config* config);

typedef struct trimtab_drift_verdict {
  int32_t alarm;
  int32_t steps, over, quiet;
  double promised, noise_floor, held_out, standard_error, threshold;
} trimtab_drift_verdict;

typedef struct trimtab_drift trimtab_drift;
TRIMTAB_API int32_t trimtab_drift_create(const trimtab_drift_config* config, trimtab_drift** out, char* error,
                                         size_t error_bytes);
TRIMTAB_API void trimtab_drift_destroy(trimtab_drift* drift);
/* A new plan is in force, which promised this balance. */
TRIMTAB_API int32_t trimtab_drift_promise(trimtab_drift* drift, double balance, char* error,
                                          size_t error_bytes);
/* An alarm was weighed and led to no new plan. */
TRIMTAB_API void trimtab_drift_dismiss(trimtab_drift* drift);
/* One step after the plan: tokens of the busiest and of the mean rank. */
TRIMTAB_API int32_t trimtab_drift_observe(trimtab_drift* drift, double busiest_tokens, double mean_tokens,
                                          trimtab_drift_verdict* verdict, char* error, size_t error_bytes);

typedef struct trimtab_worth_input {
  uint32_t struct_bytes;
  double balance_now, balance_planned, gain_kept_ratio, noise_floor, step_ns, steps_until_next;
  double bytes_busiest_rank, bandwidth_bytes_per_s, stall_ratio, payback_ratio;
} trimtab_worth_input;
TRIMTAB_API void trimtab_worth_input_default(trimtab_worth_input* input);
typedef struct trimtab_worth {
  int32_t pays;
  double gain_ns_per_step, gain_ns, cost_ns, break_even_steps;
} trimtab_worth;
TRIMTAB_API int32_t trimtab_worth_of(const trimtab_worth_input* input, trimtab_worth* out, char* error,
                                     size_t error_bytes);

#ifdef __cplusplus
}
#endif
