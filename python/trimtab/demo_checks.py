"""What must hold after each turn of the demo conversation."""

BLOCK = 128


def kinds(record):
    return [event['kind'] for event in record['events']]


def check_turn(number, record, usage, previous):
    """Returns the faults found in one turn: a list of sentences, empty when all is right.

    record, previous: GET /debug/requests/ID of this turn and of the turn before (None for the first)."""
    faults, summary = [], record['summary']
    hit, computed, prompt = summary['hit_tokens'], summary['computed_tokens'], summary['prompt_tokens']
    if record['state'] != 'finished':
        faults.append(f"the request is {record['state']}")
    if computed != prompt - hit:
        faults.append(f'{computed} tokens were computed where {prompt} - {hit} hit = {prompt - hit} were missing')
    if (usage.cache_read_input_tokens or 0) != hit or usage.input_tokens != prompt - hit:
        faults.append(f'the API says {usage.cache_read_input_tokens} cached and {usage.input_tokens} new tokens, '
                      f'the log {hit} and {prompt - hit}')
    if usage.output_tokens != summary['output_tokens'] or len(record['tokens']) != summary['output_tokens']:
        faults.append(f"{usage.output_tokens} output tokens were billed, {summary['output_tokens']} generated, "
                      f"{len(record['tokens'])} logged")
    if previous is not None:
        # All full blocks of the turn before: its prompt and its answer; the last token drawn has no KV yet.
        before = previous['summary']
        reusable = (before['prompt_tokens'] + before['output_tokens'] - 1) // BLOCK * BLOCK
        if hit < reusable:
            faults.append(f'{hit} tokens hit where the turn before left {reusable} in full blocks')
    needed = {'admission', 'match', 'queue', 'lease', 'prefill_done', 'finished'}
    if summary['output_tokens'] > 1:
        needed |= {'decode', 'decode_start'}
    if number == 3:
        needed |= {'vision', 'encoded'}
    missing = needed - set(kinds(record))
    if missing:
        faults.append(f'the decision log lacks {", ".join(sorted(missing))}')
    return faults
