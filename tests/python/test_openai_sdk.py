"""The `openai` SDK against the gateway over the fake engine, which echoes the last turn."""
import base64
import struct
import zlib

import pytest

from conftest import leave_early

openai = pytest.importorskip('openai')


@pytest.fixture
def client(gateway):
    return openai.OpenAI(base_url=gateway.url + '/v1', api_key='none', max_retries=0, timeout=120)


def png(width, height):
    """A grey PNG."""
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    rows = b''.join(b'\0' + b'\x80' * width for _ in range(height))
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)) + \
        chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')


def test_completion(client, gateway):
    answer = client.chat.completions.create(model=gateway.model, messages=[{'role': 'user', 'content': 'hello 你好🌍'}])
    assert answer.id.startswith('chatcmpl-')
    assert answer.choices[0].message.content == 'hello 你好🌍'
    assert answer.choices[0].finish_reason == 'stop'
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_stream_with_usage(client, gateway):
    chunks = list(client.chat.completions.create(
        model=gateway.model, messages=[{'role': 'user', 'content': 'one two 三'}], stream=True,
        stream_options={'include_usage': True}))
    assert ''.join(c.choices[0].delta.content or '' for c in chunks if c.choices) == 'one two 三'
    assert chunks[0].choices[0].delta.role == 'assistant'
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == 'stop'
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 3
    assert len({c.id for c in chunks}) == 1


def test_stop_and_length(client, gateway):
    messages = [{'role': 'user', 'content': 'alpha STOP beta'}]
    answer = client.chat.completions.create(model=gateway.model, messages=messages, stop=['STOP'])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ('alpha ', 'stop')
    answer = client.chat.completions.create(model=gateway.model, messages=messages, max_completion_tokens=1)
    assert answer.choices[0].finish_reason == 'length' and answer.usage.completion_tokens == 1


def test_second_turn_hits_what_the_first_computed(client, gateway):
    question = 'Please repeat this sentence. ' * 60
    first = client.chat.completions.create(model=gateway.model, messages=[{'role': 'user', 'content': question}])
    history = [{'role': 'user', 'content': question},
               {'role': 'assistant', 'content': first.choices[0].message.content},
               {'role': 'user', 'content': 'Go on.'}]
    second = client.chat.completions.create(model=gateway.model, messages=history)
    known = first.usage.prompt_tokens + first.usage.completion_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= known // 128 * 128


def test_tools_and_images_are_accepted(client, gateway):
    tools = [{'type': 'function', 'function': {'name': 'ls', 'description': 'lists', 'parameters': {'type': 'object', 'properties': {}}}}]
    call = {'id': 'c1', 'type': 'function', 'function': {'name': 'ls', 'arguments': '{}'}}
    url = 'data:image/png;base64,' + base64.b64encode(png(160, 80)).decode()
    answer = client.chat.completions.create(model=gateway.model, tools=tools, messages=[
        {'role': 'system', 'content': 'be brief'},
        {'role': 'user', 'content': [{'type': 'text', 'text': 'see'}, {'type': 'image_url', 'image_url': {'url': url}}]},
        {'role': 'assistant', 'content': None, 'tool_calls': [call]},
        {'role': 'tool', 'tool_call_id': 'c1', 'content': 'a.txt'},
        {'role': 'user', 'content': 'thanks'}])
    assert answer.choices[0].message.content == 'thanks'


def test_models(client, gateway):
    assert [m.id for m in client.models.list().data] == [gateway.model]
    assert client.models.retrieve(gateway.model).owned_by == 'trimtab'
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve('gpt-5')


def test_errors_are_the_sdk_s_own(client, gateway):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model='gpt-5', messages=[{'role': 'user', 'content': 'a'}])
    assert unknown.value.code == 'model_not_found' and unknown.value.param == 'model'
    with pytest.raises(openai.BadRequestError) as empty:
        client.chat.completions.create(model=gateway.model, messages=[])
    assert empty.value.param == 'messages'
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=gateway.model, messages=[{'role': 'user', 'content': 'word ' * 9000}])
    assert long.value.code == 'context_length_exceeded' and '8191' in long.value.message


def test_leaving_early_frees_the_engine(slow_gateway):
    client = openai.OpenAI(base_url=slow_gateway.url + '/v1', api_key='none', max_retries=0, timeout=0.3)
    asked = {'model': slow_gateway.model, 'messages': [{'role': 'user', 'content': 'wait ' * 2000}]}

    def time_out():
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(**asked)

    def close():
        stream = client.with_options(timeout=60).chat.completions.create(**asked, stream=True)
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        stream.close()
    leave_early(slow_gateway, time_out)
    leave_early(slow_gateway, close)
