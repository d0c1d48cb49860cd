"""Re-placement: when to do it (statistics, drift, worth) and how copies move from one map to another."""
import numpy

from trimtab._core import experts as _core
from trimtab.experts import _arrays


class Statistics:
    """The loads that plans are made from: a ring of the last window_steps steps of per-rank counts, folded to logical experts.

    maps: [layers, slots], in force now. interval_steps: counted steps between re-placements; the first comes after a quarter of it;
    0: never. local_rank: None when every rank reports here, else the one rank that does (add windows up over ranks before planning).
    Source: system facts, section 6.
    """

    def __init__(self, maps, experts, ranks, *, window_steps, interval_steps=0, local_rank=None):
        maps = _arrays.integers(maps, 'maps', '[layers, slots]')
        config = _core.StatisticsConfig()
        config.shape = _core.Shape(_arrays.whole(experts, 'experts'), maps.shape[1], _arrays.whole(ranks, 'ranks'))
        config.layers = maps.shape[0]
        config.window_steps = _arrays.whole(window_steps, 'window_steps')
        config.interval_steps = _arrays.whole(interval_steps, 'interval_steps')
        config.local_rank = -1 if local_rank is None else _arrays.whole(local_rank, 'local_rank', 0)
        self._statistics = _core.Statistics.make(config, maps)

    @classmethod
    def preset(cls, phase, experts, ranks, layers):
        """The published presets: 'prefill' 100 steps, every 1,000, 4 redundant slots a rank; 'decode' 1,000, 10,000, 1."""
        config = _core.StatisticsConfig.preset(phase, _arrays.whole(experts, 'experts', 1), _arrays.whole(ranks, 'ranks', 1),
                                               _arrays.whole(layers, 'layers', 1))
        maps = numpy.tile(_core.initial_map(config.shape), (config.layers, 1))
        made = cls.__new__(cls)
        made._statistics = _core.Statistics.make(config, maps)
        return made

    @property
    def config(self):
        """shape, layers, window_steps, interval_steps."""
        return self._statistics.config

    def add(self, rank, counts, padding=None):
        """One rank's report of the open step: counts int32 [layers, slots of a rank]; padding: tokens among them that were not real."""
        padding = numpy.empty((0, 0), numpy.int32) if padding is None else padding
        self._statistics.add(_arrays.whole(rank, 'rank'), _arrays.integers(counts, 'counts', '[layers, slots of a rank]'),
                             _arrays.integers(padding, 'padding', '[layers, slots of a rank]'))

    def end_step(self, counts=True):
        """Closes the step: 'recorded', 'ignored' (counts=False: warm-up, profiling) or 'incomplete' (a rank did not report)."""
        return self._statistics.end_step(bool(counts))

    def set_map(self, layer, physical_to_logical):
        """The map of a layer from the open step on."""
        self._statistics.set_map(_arrays.whole(layer, 'layer'), _arrays.integers(physical_to_logical, 'physical_to_logical', '[slots]'))

    def windows(self):
        """int64 [steps, layers, experts], oldest step first: what Planner takes."""
        return self._statistics.windows()

    def due(self):
        """The next re-placement has been reached; true until restart_interval()."""
        return self._statistics.due()

    def restart_interval(self):
        """A re-placement was done, or weighed and skipped."""
        self._statistics.restart_interval()

    def measured_balance(self, steps):
        """Sum of busiest over sum of mean ranks over the last steps, with the replicas that tokens really took."""
        return self._statistics.measured_balance(_arrays.whole(steps, 'steps'))

    @property
    def steps(self):
        """Steps in the window."""
        return self._statistics.steps


class DriftDetector:
    """Says when a plan must be replaced before its time: balance on the steps since is worse than what it promised.

    tolerance: balance above what may be expected that is borne; sigmas: standard errors that count as noise; confirm_steps: steps in a
    row over the threshold; quiet_steps: silence after an alarm that led to no plan.
    """

    def __init__(self, ranks, *, steps_max=64, steps_min=16, tolerance=0.02, sigmas=3.0, confirm_steps=4, quiet_steps=256):
        self._detector = _core.DriftDetector.make(
            _arrays.whole(ranks, 'ranks'), _arrays.whole(steps_max, 'steps_max'), _arrays.whole(steps_min, 'steps_min'), float(tolerance),
            float(sigmas), _arrays.whole(confirm_steps, 'confirm_steps'), _arrays.whole(quiet_steps, 'quiet_steps'))

    def promise(self, balance):
        """A new plan is in force, and promises this balance (PlanReason.balance)."""
        self._detector.promise(float(balance))

    def observe(self, busiest_tokens, mean_tokens):
        """One step after the plan. Returns the verdict: alarm, promised, held_out, standard_error, threshold, steps; str() tells it."""
        return self._detector.observe(float(busiest_tokens), float(mean_tokens))

    def dismiss(self):
        """An alarm was weighed and no plan came of it."""
        self._detector.dismiss()


def worth(*, balance_now, balance_planned, step_ns, steps_until_next, bytes_busiest_rank, bandwidth_bytes_per_s, gain_kept_ratio=0.5,
          noise_floor=1.0, stall_ratio=1.0, payback_ratio=1.0):
    """Does a new plan pay for its moves? Returns pays, gain_ns_per_step, gain_ns, cost_ns, break_even_steps (-1: never).

    balance_*: of the map in force and of the new one on the same window; gain_kept_ratio: part of that gain which holds on later steps;
    step_ns: time of a step that follows the busiest rank; bytes_busiest_rank: sent or received by the rank that moves most;
    stall_ratio: part of the moving time that serving loses.
    """
    return _core.worth(float(balance_now), float(balance_planned), float(gain_kept_ratio), float(noise_floor), float(step_ns),
                       float(steps_until_next), float(bytes_busiest_rank), float(bandwidth_bytes_per_s), float(stall_ratio),
                       float(payback_ratio))


def plan_moves(before, after, experts, ranks, *, ranks_before=None, rank_before=(), lost=(), nodes=1, staging_slots=1, keep_old_map=False,
               same_node_first=True, bytes_per_copy=0, link_bytes_per_s=0, stall_ns=0):
    """How the copies of one layer come from map `before` [old slots] to `after` [slots], in place and resumable.

    ranks_before: when it was another number; rank_before: [ranks], the old rank that is rank r now, -1 for a new one; lost: old ranks
    whose memory is gone. staging_slots: extra slots of each rank (one is always enough). stall_ns, with bytes_per_copy and
    link_bytes_per_s: no batch takes longer on any rank. Returns a plan: batches (lists of (kind, expert, (rank, slot) from, (rank, slot)
    to); the moves of a batch run at once), received, sends_max, receives_max, sends_max_bound, stall_ns, reloaded, by_host() [hosts, 4]
    (sends, receives, local copies, reloads), valid_places(batch, running) [hosts, slots]; str() tells it.
    """
    before, after = _arrays.integers(before, 'before', '[slots]'), _arrays.integers(after, 'after', '[slots]')
    experts, ranks = _arrays.whole(experts, 'experts'), _arrays.whole(ranks, 'ranks')
    nodes = _arrays.whole(nodes, 'nodes')
    old = _core.Shape(experts, len(before), ranks if ranks_before is None else _arrays.whole(ranks_before, 'ranks_before'),
                      nodes if ranks_before is None else 1)
    options = _core.MoveOptions()
    options.staging_slots = _arrays.whole(staging_slots, 'staging_slots')
    options.keep_old_map, options.same_node_first = bool(keep_old_map), bool(same_node_first)
    options.bytes_per_copy, options.link_bytes_per_s, options.stall_ns = int(bytes_per_copy), int(link_bytes_per_s), int(stall_ns)
    return _core.plan_moves(old, before, _core.Shape(experts, len(after), ranks, nodes), after,
                            _arrays.integers(rank_before, 'rank_before', '[ranks]'), _arrays.integers(lost, 'lost', '[ranks]'), options)
