"""./bench NAME [--json] [--trace PATH]"""
import argparse
import json
import sys

from benchmarks import engine, gateway, kv, policy, text
from benchmarks.report import machine, print_table

BENCHES = {
    'policy': (policy.run, 'decisions: prefill pull, decode choice, chunk solve, hash chain; gateway CPU per request and token'),
    'gateway': (gateway.run, 'CPU per request and per streamed token of the gateway with a fake engine'),
    'engine': (engine.run, 'tokens per second of the reference engine on one thread'),
    'kv': (kv.run, 'block keys, prefix matches and pool transfers'),
    'text': (text.run, 'tokenizer throughput beside the PyPI tokenizers wheel'),
}


def main():
    parser = argparse.ArgumentParser(prog='./bench', description=__doc__)
    parser.add_argument('name', nargs='?', choices=sorted(BENCHES), help='which benchmark')
    parser.add_argument('--list', action='store_true', help='name the benchmarks and exit')
    parser.add_argument('--json', action='store_true', help='print the JSON form instead of a table')
    parser.add_argument('--trace', metavar='PATH', help='a recorded trace (Mooncake jsonl) to draw prompt lengths from; '
                        'without it each bench generates its own load')
    arguments = parser.parse_args()
    if arguments.list or arguments.name is None:
        for name, (_, what) in sorted(BENCHES.items()):
            print(f'{name:10} {what}')
        return 0 if arguments.list else 2
    results = BENCHES[arguments.name][0](arguments)
    report = {'bench': arguments.name, 'machine': machine(), 'results': results}
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        print_table(report)
    return 0


if __name__ == '__main__':
    sys.exit(main())
