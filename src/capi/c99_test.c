/* Uses the library as an engine in C would: only the header and the shared library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trimtab_experts.h"

static int failures = 0;
static char error[256];

#define EXPECT(condition)                                                        \
  do {                                                                           \
    if (!(condition)) {                                                          \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, error); \
      ++failures;                                                                \
    }                                                                            \
  } while (0)
#define EXPECT_OK(call)        \
  do {                         \
    error[0] = '\0';           \
    EXPECT((call) == TRIMTAB_OK); \
  } while (0)
#define EXPECT_FAULT(call, text)                 \
  do {                                           \
    error[0] = '\0';                             \
    EXPECT((call) == TRIMTAB_INVALID_ARGUMENT);  \
    EXPECT(strstr(error, (text)) != NULL);       \
  } while (0)

enum { EXPERTS = 32, SLOTS = 40, RANKS = 8, WIDTH = SLOTS / RANKS, STEPS = 20, LAYERS = 3 };

static const trimtab_shape shape = {EXPERTS, SLOTS, RANKS, 1, 1};
static int32_t loads[STEPS * LAYERS * EXPERTS];
static int32_t maps[LAYERS * SLOTS], current[LAYERS * SLOTS];

static void fill_loads(void) {
  uint32_t state = 12345;
  int32_t i;
  for (i = 0; i < STEPS * LAYERS * EXPERTS; ++i) {
    state = state * 1664525U + 1013904223U;
    /* Every fourth expert is asked for four times as much. */
    loads[i] = (int32_t)(state >> 24) * (i % 4 == 0 ? 4 : 1);
  }
}

static int no_rank_holds_twice(const int32_t *map) {
  int32_t rank, i, j;
  for (rank = 0; rank < RANKS; ++rank)
    for (i = 0; i < WIDTH; ++i)
      for (j = 0; j < i; ++j)
        if (map[rank * WIDTH + i] == map[rank * WIDTH + j]) return 0;
  return 1;
}

static void test_plans(void) {
  trimtab_plan_options options;
  trimtab_plan_reason reasons[LAYERS], one;
  trimtab_balance planned[LAYERS], initial[LAYERS];
  int32_t again[LAYERS * SLOTS], single[SLOTS], layer;
  for (layer = 0; layer < LAYERS; ++layer)
    EXPECT_OK(trimtab_initial_map(&shape, current + layer * SLOTS, error, sizeof error));
  trimtab_plan_options_default(&options);
  EXPECT(options.struct_bytes == sizeof options);
  EXPECT_OK(trimtab_plan_layers(&shape, loads, TRIMTAB_INT32, STEPS, LAYERS, current, SLOTS, &options, maps, reasons,
                                error, sizeof error));
  EXPECT_OK(trimtab_balance_of(&shape, maps, loads, TRIMTAB_INT32, STEPS, LAYERS, planned, error, sizeof error));
  EXPECT_OK(trimtab_balance_of(&shape, current, loads, TRIMTAB_INT32, STEPS, LAYERS, initial, error, sizeof error));
  for (layer = 0; layer < LAYERS; ++layer) {
    EXPECT(no_rank_holds_twice(maps + layer * SLOTS));
    EXPECT(planned[layer].of_sums < initial[layer].of_sums);
    EXPECT(reasons[layer].balance < reasons[layer].balance_before);
  }
  options.threads = 4;
  EXPECT_OK(trimtab_plan_layers(&shape, loads, TRIMTAB_INT32, STEPS, LAYERS, current, SLOTS, &options, again, NULL,
                                error, sizeof error));
  EXPECT(memcmp(maps, again, sizeof maps) == 0);
  EXPECT_OK(trimtab_plan_layer(&shape, loads + EXPERTS, TRIMTAB_INT32, STEPS, LAYERS * EXPERTS, current + SLOTS, SLOTS,
                               &options, single, &one, error, sizeof error));
  EXPECT(memcmp(maps + SLOTS, single, sizeof single) == 0);
  options.start = TRIMTAB_START_INCREMENTAL;
  options.moves_max = 2;
  EXPECT_OK(trimtab_plan_layers(&shape, loads, TRIMTAB_INT32, STEPS, LAYERS, current, SLOTS, &options, again, reasons,
                                error, sizeof error));
  for (layer = 0; layer < LAYERS; ++layer) EXPECT(reasons[layer].received <= 2);
  EXPECT_FAULT(trimtab_plan_layers(&shape, loads, TRIMTAB_INT32, STEPS, LAYERS, NULL, 0, &options, again, NULL, error,
                                   sizeof error),
               "current");
}

static void test_lost_rank(void) {
  const trimtab_shape fewer = {EXPERTS, SLOTS - WIDTH, RANKS - 1, 1, 1};
  const int32_t survivors[RANKS - 1] = {0, 1, 2, 4, 5, 6, 7}, lost[1] = {3};
  int32_t after[SLOTS - WIDTH];
  trimtab_move_plan *plan = NULL;
  trimtab_move_summary summary;
  EXPECT_OK(trimtab_replan_ranks(&shape, maps, &fewer, survivors, loads, TRIMTAB_INT32, STEPS, LAYERS * EXPERTS, NULL,
                                 after, NULL, error, sizeof error));
  EXPECT_OK(trimtab_move_plan_create(&shape, maps, &fewer, after, survivors, lost, 1, NULL, &plan, error,
                                     sizeof error));
  EXPECT_OK(trimtab_move_plan_summary(plan, &summary, error, sizeof error));
  EXPECT(summary.hosts == RANKS - 1);
  EXPECT(summary.sends_max == summary.sends_max_bound);
  trimtab_move_plan_destroy(plan);
}

static void test_published_signatures(void) {
  int32_t to_logical[SLOTS], to_physical[EXPERTS * RANKS], count[EXPERTS], e, k, copies;
  float weight[EXPERTS];
  const int32_t groups = 8, nodes = 2;
  for (e = 0; e < EXPERTS; ++e) weight[e] = (float)(1 + e % 7);
  EXPECT_OK(trimtab_rebalance_experts(weight, TRIMTAB_FLOAT, 1, EXPERTS, SLOTS, groups, nodes, RANKS, 0, 1,
                                      to_logical, to_physical, RANKS, count, error, sizeof error));
  for (copies = 0, e = 0; e < EXPERTS; ++e) {
    copies += count[e];
    for (k = 0; k < RANKS; ++k) EXPECT((to_physical[e * RANKS + k] >= 0) == (k < count[e]));
    for (k = 0; k < count[e]; ++k) {
      EXPECT(to_logical[to_physical[e * RANKS + k]] == e);
      /* A group never leaves its node. */
      EXPECT(to_physical[e * RANKS + k] / (SLOTS / nodes) ==
             to_physical[e / (EXPERTS / groups) * (EXPERTS / groups) * RANKS] / (SLOTS / nodes));
    }
  }
  EXPECT(copies == SLOTS);
  EXPECT_FAULT(trimtab_rebalance_experts(weight, TRIMTAB_FLOAT, 1, EXPERTS, SLOTS, 1, nodes, RANKS, 0, 1, to_logical,
                                         to_physical, RANKS, count, error, sizeof error),
               "global");
  EXPECT_OK(trimtab_rebalance_experts(weight, TRIMTAB_FLOAT, 1, EXPERTS, SLOTS, 0, nodes, RANKS, 1, 1, to_logical,
                                      to_physical, RANKS, count, error, sizeof error));
  EXPECT_OK(trimtab_rebalance_global(loads, TRIMTAB_INT32, STEPS * LAYERS, 1, EXPERTS, SLOTS, WIDTH, 2, to_logical,
                                     to_physical, RANKS, count, error, sizeof error));
  EXPECT(no_rank_holds_twice(to_logical));
  EXPECT_FAULT(trimtab_rebalance_global(loads, TRIMTAB_INT32, STEPS, LAYERS, EXPERTS, SLOTS, 7, 2, to_logical,
                                        to_physical, RANKS, count, error, sizeof error),
               "num_local_physical");
  EXPECT_FAULT(trimtab_rebalance_experts(weight, TRIMTAB_FLOAT, 1, EXPERTS, SLOTS + 1, 1, 1, RANKS, 0, 1, to_logical,
                                         to_physical, RANKS, count, error, sizeof error),
               "use 48");
}

static void test_dispatch(void) {
  int32_t to_physical[EXPERTS * RANKS], count[EXPERTS], e;
  double tokens[EXPERTS], shares[SLOTS], sum;
  uint16_t *table;
  trimtab_shares *solver = NULL;
  trimtab_share_result result;
  EXPECT_OK(trimtab_tables(&shape, maps, 1, to_physical, RANKS, count, error, sizeof error));
  EXPECT_FAULT(trimtab_tables(&shape, maps, 1, to_physical, 1, count, error, sizeof error), "copies_max");
  EXPECT(trimtab_replica_of(1, 2, 3) == (1 + 2 * 23333) % 3);
  EXPECT(trimtab_replica_of(1, 2, 0) == -1);
  EXPECT_OK(trimtab_shares_create(&shape, maps, 64, &solver, error, sizeof error));
  for (e = 0; e < EXPERTS; ++e) tokens[e] = 10.0 + e;
  EXPECT_OK(trimtab_shares_solve(solver, tokens, shares, &result, error, sizeof error));
  EXPECT(result.peak_tokens >= result.mean_tokens && result.peak_tokens <= result.bound_tokens * (1 + 1e-9));
  for (sum = 0, e = 0; e < SLOTS; ++e) sum += shares[e];
  EXPECT(sum > EXPERTS - 1e-6 && sum < EXPERTS + 1e-6);
  table = malloc(sizeof *table * EXPERTS * (size_t)trimtab_shares_copies_max(solver));
  EXPECT_OK(trimtab_shares_table(solver, table, error, sizeof error));
  for (e = 0; e < EXPERTS; ++e) {
    int32_t k, parts = 0;
    for (k = 0; k < trimtab_shares_copies_max(solver); ++k)
      parts += table[e * trimtab_shares_copies_max(solver) + k];
    EXPECT(parts == 64);
    EXPECT(maps[trimtab_shares_slot(solver, e, 3, 5, 9)] == e);
  }
  EXPECT(trimtab_shares_slot(solver, EXPERTS, 0, 0, 1) == -1);
  EXPECT(trimtab_shares_slot(solver, 0, 0, 1, 1) == -1);
  tokens[5] = -1;
  EXPECT_FAULT(trimtab_shares_solve(solver, tokens, shares, &result, error, sizeof error), "-1");
  free(table);
  trimtab_shares_destroy(solver);
}

static void test_moves(void) {
  trimtab_move_options options;
  trimtab_move_plan *plan = NULL;
  trimtab_move_summary summary;
  trimtab_move *moves;
  int32_t *memory, *valid, batch, i;
  int64_t hosts[RANKS * 4], received = 0;
  trimtab_move_options_default(&options);
  options.bytes_per_copy = 1000000;
  options.link_bytes_per_s = 50000000000;
  options.stall_ns = 40000; /* two copies */
  EXPECT_OK(trimtab_move_plan_create(&shape, current, &shape, maps, NULL, NULL, 0, &options, &plan, error,
                                     sizeof error));
  EXPECT_OK(trimtab_move_plan_summary(plan, &summary, error, sizeof error));
  EXPECT(summary.stall_ns > 0 && summary.stall_ns <= options.stall_ns && summary.slices == 1);
  EXPECT_OK(trimtab_move_plan_hosts(plan, hosts, error, sizeof error));
  for (i = 0; i < RANKS; ++i) received += hosts[4 * i + 1];
  EXPECT(received == summary.received && received > 0);
  /* Runs it on one integer per place. */
  memory = malloc(sizeof *memory * (size_t)(summary.hosts * (summary.width + summary.staging)));
  valid = malloc(sizeof *valid * (size_t)(summary.hosts * (summary.width + summary.staging)));
  EXPECT_OK(trimtab_move_plan_valid(plan, 0, 0, memory, error, sizeof error));
  for (batch = 0; batch < summary.batches; ++batch) {
    const int32_t size = trimtab_move_plan_batch_size(plan, batch), places = summary.width + summary.staging;
    moves = malloc(sizeof *moves * (size_t)size);
    EXPECT_OK(trimtab_move_plan_batch(plan, batch, moves, error, sizeof error));
    for (i = 0; i < size; ++i) {
      memory[moves[i].to_host * places + moves[i].to_slot] = memory[moves[i].from_host * places + moves[i].from_slot];
    }
    free(moves);
    EXPECT_OK(trimtab_move_plan_valid(plan, batch + 1, 0, valid, error, sizeof error));
    for (i = 0; i < summary.hosts * places; ++i) EXPECT(valid[i] < 0 || valid[i] == memory[i]);
  }
  for (i = 0; i < SLOTS; ++i)
    EXPECT(memory[i / WIDTH * (summary.width + summary.staging) + i % WIDTH] == maps[i]);
  EXPECT(trimtab_move_plan_batch_size(plan, summary.batches) == -1);
  EXPECT_FAULT(trimtab_move_plan_valid(plan, -1, 0, valid, error, sizeof error), "batch -1");
  free(memory);
  free(valid);
  trimtab_move_plan_destroy(plan);
  options.struct_bytes = 0;
  EXPECT_FAULT(trimtab_move_plan_create(&shape, current, &shape, maps, NULL, NULL, 0, &options, &plan, error,
                                        sizeof error),
               "trimtab_move_options_default");
  EXPECT(plan == NULL);
}

static void test_statistics(void) {
  trimtab_statistics_config config;
  trimtab_statistics *ring = NULL;
  int32_t counts[LAYERS * WIDTH], rank, i, step;
  int64_t window[4 * LAYERS * EXPERTS], sum = 0;
  EXPECT_OK(trimtab_statistics_preset(TRIMTAB_PHASE_DECODE, 384, 64, 40, &config, error, sizeof error));
  EXPECT(config.shape.slots == 448 && config.window_steps == 1000 && config.interval_steps == 10000);
  EXPECT(trimtab_statistics_memory_bytes(&config) > INT64_C(40) * 384 * 1000 * 8);
  config.shape = shape;
  config.layers = LAYERS;
  config.window_steps = 4;
  config.interval_steps = 12;
  EXPECT_OK(trimtab_statistics_create(&config, current, &ring, error, sizeof error));
  for (i = 0; i < LAYERS * WIDTH; ++i) counts[i] = i;
  for (step = 0; step < 3; ++step) {
    EXPECT(trimtab_statistics_due(ring) == 0);
    for (rank = 0; rank < RANKS; ++rank)
      EXPECT_OK(trimtab_statistics_add(ring, rank, counts, NULL, error, sizeof error));
    EXPECT(trimtab_statistics_end_step(ring, 0) == TRIMTAB_STEP_RECORDED);
  }
  EXPECT(trimtab_statistics_due(ring) == 1); /* after 12 / 4 steps */
  trimtab_statistics_restart_interval(ring);
  EXPECT(trimtab_statistics_due(ring) == 0);
  EXPECT(trimtab_statistics_end_step(ring, 1) == TRIMTAB_STEP_IGNORED);
  EXPECT(trimtab_statistics_end_step(ring, 0) == TRIMTAB_STEP_INCOMPLETE);
  EXPECT(trimtab_statistics_steps(ring) == 3);
  EXPECT_OK(trimtab_statistics_windows(ring, window, error, sizeof error));
  for (i = 0; i < 3 * LAYERS * EXPERTS; ++i) sum += window[i];
  EXPECT(sum == (int64_t)3 * RANKS * (LAYERS * WIDTH) * (LAYERS * WIDTH - 1) / 2);
  EXPECT(trimtab_statistics_balance(ring, 4) == 1.0); /* all ranks alike */
  EXPECT_OK(trimtab_statistics_set_map(ring, 0, maps, error, sizeof error));
  EXPECT_FAULT(trimtab_statistics_set_map(ring, LAYERS, maps, error, sizeof error), "layer 3");
  counts[2] = -7;
  EXPECT_FAULT(trimtab_statistics_add(ring, 0, counts, NULL, error, sizeof error), "-7");
  trimtab_statistics_destroy(ring);
}

static void test_drift(void) {
  trimtab_drift_config config;
  trimtab_drift_verdict verdict;
  trimtab_drift *drift = NULL;
  trimtab_worth_input input;
  trimtab_worth worth;
  int step, alarms = 0;
  trimtab_drift_config_default(&config);
  config.ranks = 8;
  EXPECT_OK(trimtab_drift_create(&config, &drift, error, sizeof error));
  EXPECT_OK(trimtab_drift_promise(drift, 1.03, error, sizeof error));
  for (step = 0; step < 100; ++step) {
    EXPECT_OK(trimtab_drift_observe(drift, step < 50 ? 1580 : 2000, 1536, &verdict, error, sizeof error));
    if (step < 50) EXPECT(!verdict.alarm);
    alarms += verdict.alarm;
  }
  EXPECT(alarms > 0);
  trimtab_drift_dismiss(drift);
  EXPECT_FAULT(trimtab_drift_promise(drift, 0.5, error, sizeof error), "0.5");
  trimtab_drift_destroy(drift);
  trimtab_worth_input_default(&input);
  input.balance_now = 1.2;
  input.balance_planned = 1.1;
  input.step_ns = 1.2e6;
  input.steps_until_next = 1000;
  input.bytes_busiest_rank = 1e9;
  input.bandwidth_bytes_per_s = 50e9;
  EXPECT_OK(trimtab_worth_of(&input, &worth, error, sizeof error));
  EXPECT(worth.pays && worth.cost_ns == 2e7); /* saves 50 us a step, 50 ms in all */
}

static void test_errors(void) {
  const trimtab_shape odd = {EXPERTS, SLOTS + 1, RANKS, 1, 1};
  char tiny[8];
  EXPECT(strcmp(trimtab_experts_version(), "") != 0);
  EXPECT(trimtab_experts_abi() == TRIMTAB_EXPERTS_ABI);
  EXPECT(trimtab_physical_slots(384, 64, 64) == 448);
  EXPECT(trimtab_physical_slots(384, 1, 5) == 385);
  EXPECT(trimtab_physical_slots(384, 1, 0) == -1);
  EXPECT_FAULT(trimtab_shape_check(&odd, error, sizeof error), "use 48 (16 redundant)");
  EXPECT_FAULT(trimtab_shape_check(NULL, error, sizeof error), "NULL");
  EXPECT(trimtab_shape_check(&odd, NULL, 0) == TRIMTAB_INVALID_ARGUMENT);
  EXPECT(trimtab_shape_check(&odd, tiny, sizeof tiny) == TRIMTAB_INVALID_ARGUMENT);
  EXPECT(strlen(tiny) == sizeof tiny - 1);
  EXPECT_FAULT(trimtab_plan_layers(&shape, loads, 9, STEPS, LAYERS, NULL, 0, NULL, maps, NULL, error, sizeof error),
               "load_type 9");
  EXPECT_FAULT(
      trimtab_plan_layers(&shape, NULL, 0, STEPS, LAYERS, NULL, 0, NULL, maps, NULL, error, sizeof error), "NULL");
  EXPECT_FAULT(
      trimtab_plan_layers(&shape, loads, 0, 0, LAYERS, NULL, 0, NULL, maps, NULL, error, sizeof error), "empty");
  loads[EXPERTS + 4] = -3;
  EXPECT_FAULT(trimtab_plan_layers(&shape, loads, 0, STEPS, LAYERS, NULL, 0, NULL, maps, NULL, error, sizeof error),
               "layer 1: the load of expert 4 in step 0 is -3");
}

int main(void) {
  fill_loads();
  test_plans();
  test_lost_rank();
  test_published_signatures();
  test_dispatch();
  test_moves();
  test_statistics();
  test_drift();
  test_errors();
  printf(failures == 0 ? "all passed\n" : "%d expectations failed\n", failures);
  return failures == 0 ? 0 : 1;
}
