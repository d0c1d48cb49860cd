"""Requests as they come to a fleet: Poisson arrivals, lognormal prompts, exponential answers."""
import random


def trace_csv(seed, requests, per_second=3, median_tokens=3000, sigma=1):
    """The text of a csv with `requests` lines."""
    rng = random.Random(seed)
    lines, at = ['arrival_s,prompt_tokens,output_tokens'], 0.0
    for _ in range(requests):
        at += rng.expovariate(per_second)
        prompt = int(min(median_tokens * rng.lognormvariate(0, sigma), 90_000)) + 1
        lines.append(f'{at:.3f},{prompt},{int(rng.expovariate(1 / 200)) + 1}')
    return '\n'.join(lines) + '\n'
