"""The `anthropic` SDK against the gateway over the fake engine, which echoes the last turn."""
import base64

import pytest

from conftest import leave_early
from test_openai_sdk import png

anthropic = pytest.importorskip('anthropic')


@pytest.fixture
def client(gateway):
    return anthropic.Anthropic(base_url=gateway.url, api_key='none', max_retries=0, timeout=120)


def ask(client, gateway, text, **more):
    return client.messages.create(model=gateway.model, max_tokens=500, messages=[{'role': 'user', 'content': text}], **more)


def test_message(client, gateway):
    answer = ask(client, gateway, 'hello 你好🌍')
    assert answer.id.startswith('msg_') and answer.role == 'assistant'
    assert [block.text for block in answer.content] == ['hello 你好🌍']
    assert answer.stop_reason == 'end_turn'
    assert answer.usage.input_tokens > 0 and answer.usage.cache_read_input_tokens == 0


def test_stream(client, gateway):
    with client.messages.stream(model=gateway.model, max_tokens=500,
                                messages=[{'role': 'user', 'content': 'one two 三'}]) as stream:
        kinds = [event.type for event in stream if event.type in (
            'message_start', 'content_block_start', 'content_block_stop', 'message_delta', 'message_stop')]
        final = stream.get_final_message()
    assert kinds == ['message_start', 'content_block_start', 'content_block_stop', 'message_delta', 'message_stop']
    assert final.content[0].text == 'one two 三'
    assert final.usage.output_tokens > 3


def test_stop_sequence_and_max_tokens(client, gateway):
    answer = ask(client, gateway, 'alpha STOP beta', stop_sequences=['STOP', 'never'])
    assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ('alpha ', 'stop_sequence', 'STOP')
    answer = client.messages.create(model=gateway.model, max_tokens=1, messages=[{'role': 'user', 'content': 'a b c'}])
    assert answer.stop_reason == 'max_tokens' and answer.usage.output_tokens == 1


def test_an_agent_s_turns(client, gateway):
    """System blocks with a billing header that changes, tools, a call, its result with an image, thinking."""
    tools = [{'name': 'shot', 'description': 'takes a screenshot', 'input_schema': {'type': 'object', 'properties': {}}}]
    image = {'type': 'image', 'source': {'type': 'base64', 'media_type': 'image/png',
                                         'data': base64.b64encode(png(320, 200)).decode()}}
    history = [{'role': 'user', 'content': 'Look at the screen. ' * 80}]

    def send(number):
        system = [{'type': 'text', 'text': f'x-anthropic-billing-header: cch={number};'},
                  {'type': 'text', 'text': 'You are an agent.', 'cache_control': {'type': 'ephemeral'}}]
        return client.messages.create(model=gateway.model, max_tokens=1000, system=system, tools=tools, messages=history,
                                      tool_choice={'type': 'auto'}, extra_headers={'anthropic-beta': 'unknown-2030-01-01'})
    first = send(1)
    assert first.usage.cache_read_input_tokens == 0
    history += [{'role': 'assistant', 'content': [{'type': 'thinking', 'thinking': 'hm', 'signature': 'x'},
                                                  {'type': 'text', 'text': first.content[0].text},
                                                  {'type': 'tool_use', 'id': 't1', 'name': 'shot', 'input': {'b': 1, 'a': 2}}]},
                {'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': 't1', 'content': [image]},
                                             {'type': 'text', 'text': 'What is there? ' * 50}]}]
    second = send(2)
    assert second.usage.cache_read_input_tokens >= 256, 'the changing billing header must not break the prefix'
    counted = client.messages.count_tokens(model=gateway.model, tools=tools, messages=history,
                                           system=[{'type': 'text', 'text': 'You are an agent.'}])
    assert counted.input_tokens == second.usage.input_tokens + second.usage.cache_read_input_tokens
    third = send(3)
    assert third.usage.cache_read_input_tokens > second.usage.cache_read_input_tokens


def test_errors_are_the_sdk_s_own(client, gateway):
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(model='claude-x', max_tokens=5, messages=[{'role': 'user', 'content': 'a'}])
    assert unknown.value.body['error']['type'] == 'not_found_error'
    with pytest.raises(anthropic.BadRequestError) as wrong:
        client.messages.create(model=gateway.model, max_tokens=0, messages=[{'role': 'user', 'content': 'a'}])
    assert 'max_tokens' in wrong.value.body['error']['message']
    with pytest.raises(anthropic.BadRequestError) as long:
        ask(client, gateway, 'word ' * 9000)
    assert 'prompt is too long' in str(long.value) and '8191' in str(long.value)


def test_models(client, gateway):
    assert [m.id for m in client.models.list()] == [gateway.model]


def test_leaving_early_frees_the_engine(slow_gateway):
    client = anthropic.Anthropic(base_url=slow_gateway.url, api_key='none', max_retries=0, timeout=60)

    def leave():
        with client.messages.stream(model=slow_gateway.model, max_tokens=3000,
                                    messages=[{'role': 'user', 'content': 'wait ' * 2000}]) as stream:
            next(iter(stream))  # message_start comes before the first token
    leave_early(slow_gateway, leave)
