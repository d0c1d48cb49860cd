"""An image's encoder is a real OCR: the text it reads is what the model computes with, bit for bit, and it delays nobody else."""
import base64
import json
import subprocess

import pytest

from served import BINARY, MODEL, NAME, ROOT, Served
from trimtab import demo_conversation as script

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')
xxhash = pytest.importorskip('xxhash')

TURN_START, TURN_END = 1, 2  # <|im_start|>, <|im_end|> of SmolLM2
BEFORE, AFTER = 'Look at this picture.', 'Which test fails?'


@pytest.fixture(scope='module')
def system(tmp_path_factory):
    directory = tmp_path_factory.mktemp('images')
    overrides = {'vision': {'machines': 2, 'encoders': 1}, 'prefill': {'chunk_tokens_max': 128}}
    with Served(directory, directory / 'state', overrides) as served:
        yield served


def tokenize(texts):
    lines = '\n'.join(json.dumps({'text': text}) for text in texts)
    done = subprocess.run([BINARY, 'tokenize', '--model', MODEL], input=lines, capture_output=True, text=True, check=True, cwd=ROOT)
    return [json.loads(line)['ids'] for line in done.stdout.splitlines()]


def ask(system, picture, tokens=6):
    url = 'data:image/png;base64,' + base64.b64encode(picture).decode()
    content = [{'type': 'text', 'text': BEFORE}, {'type': 'image_url', 'image_url': {'url': url}}, {'type': 'text', 'text': AFTER}]
    answer = system.openai().chat.completions.create(model=NAME, messages=[{'role': 'system', 'content': 'Be brief.'},
                                                                           {'role': 'user', 'content': content}],
                                                     max_tokens=tokens, temperature=0)
    system.wait_idle()  # blocks are stored behind the answer
    return answer, system.record(answer.id)


@pytest.fixture(scope='module')
def asked(system):
    return ask(system, script.screenshot())


def test_logits_equal_those_of_the_text_inlined(asked, tmp_path):
    """The prompt with the OCR's tokens in place of the image, computed in one process by `trimtab logits`: the same first row."""
    _, record = asked
    image = record['images'][0]
    head, line = tokenize(['system\nBe brief.', f'user\n{BEFORE}\n', f'\n{AFTER}']), tokenize(['\n', 'assistant\n'])
    system_ids, user_ids, after_ids = head
    ids = [TURN_START, *system_ids, TURN_END, *line[0], TURN_START, *user_ids, *image['token_ids'], *after_ids, TURN_END, *line[0],
           TURN_START, *line[1]]
    assert len(ids) == record['summary']['prompt_tokens']
    row = tmp_path / 'row.f32'
    subprocess.run([BINARY, 'logits', '--model', MODEL, '--out', str(row)], input=json.dumps(ids), text=True, check=True, cwd=ROOT,
                   capture_output=True)
    assert xxhash.xxh3_64(row.read_bytes()).hexdigest() == record['checksums'][0]


def test_the_ocr_read_the_screen(asked):
    """Not a stub: words that were drawn into the picture come back as tokens."""
    _, record = asked
    image = record['images'][0]
    lines = json.dumps({'ids': image['token_ids'][:image['text_tokens']]})
    done = subprocess.run([BINARY, 'tokenize', '--model', MODEL], input=lines, capture_output=True, text=True, check=True, cwd=ROOT)
    text = json.loads(done.stdout)['text']
    assert 'FAILED' in text and '1349' in text
    assert len(image['token_ids']) == image['rows']


def test_an_image_delays_no_decision(asked):
    """Hit, tier and quota are known before the encoder answers."""
    _, record = asked
    at = {event['kind']: event['at_ms'] for event in reversed(record['events'])}
    assert at['match'] <= at['queue'] <= at['lease'] <= at['vision'] < at['encoded']
    assert at['encoded'] < at['prefill_done']


def test_another_image_with_equal_placeholders_does_not_hit(system, asked):
    """Same size, same words around it, other pixels: the blocks that cover it have other keys."""
    from io import BytesIO
    from PIL import Image
    blank = BytesIO()
    Image.new('RGB', (1280, 800), (255, 255, 255)).save(blank, 'PNG')
    _, first = asked
    _, again = ask(system, script.screenshot())
    _, other = ask(system, blank.getvalue())
    assert other['summary']['prompt_tokens'] == first['summary']['prompt_tokens']
    assert again['summary']['hit_tokens'] >= 128 and 'vision' in [e['kind'] for e in first['events']]
    assert other['summary']['hit_tokens'] == 0
    assert again['checksums'] == first['checksums']
    assert other['checksums'][0] != first['checksums'][0]
