"""What no SDK would send: raw bodies and sockets against the gateway over the fake engine."""
import http.client
import json
import socket

import pytest

from conftest import wait_idle

PATHS = ['/v1/chat/completions', '/v1/messages']


def post(gateway, path, body, headers=None):
    connection = http.client.HTTPConnection('127.0.0.1', gateway.port, timeout=60)
    connection.request('POST', path, body, headers or {})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer, json.loads(text)


def message_of(path, body):
    """The message, after checking that the error has the API's own shape."""
    if path == '/v1/messages':
        assert body['type'] == 'error' and body['request_id'].startswith(('req_', 'msg_'))
    else:
        assert set(body['error']) == {'message', 'type', 'param', 'code'}
    return body['error']['message']


@pytest.mark.parametrize('path', PATHS)
@pytest.mark.parametrize('body, words', [
    (b'', 'empty'),
    (b'{"model": "smollm2', 'not closed'),
    (b'{"model": "smollm2-135m-instruct", "messages": [', 'malformed'),
    (b'[1, 2]', 'a JSON object is expected'),
    (b'{"a": ' + b'[' * 100_000 + b']' * 100_000 + b'}', 'deeper than 128'),
    (b'{"model": "\xff\xfe"}', 'not valid UTF-8'),
    (b'{"model": "\xed\xa0\x80"}', 'not valid UTF-8'),
    (b'{"model": 5}', 'expected a string'),
])
def test_broken_bodies(gateway, path, body, words):
    answer, text = post(gateway, path, body)
    assert answer.status == 400
    assert words in message_of(path, text)


@pytest.mark.parametrize('path', PATHS)
def test_a_body_over_the_limit_is_refused_before_it_is_sent(gateway, path):
    with socket.create_connection(('127.0.0.1', gateway.port), timeout=60) as connection:
        connection.sendall(f'POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 400000000\r\n\r\n'.encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 413
        message_of(path, json.loads(answer.read()))


@pytest.mark.parametrize('path', PATHS)
@pytest.mark.parametrize('image, words', [
    ('aGVsbG8gd29ybGQsIHRoaXMgaXMgdGV4dA==', 'not an image'),
    ('iVBORw0KGgoAAAANSUhEUgAAAAAAAAAACAIAAAAAAAAA', '0x0'),
    ('iVBORw0KGgoAAAANSUhEUgABhqAAAYagCAIAAAAAAAAA', '100000x100000'),
    ('/9j/wAARCAAQABADAREAAhEAAxEA', 'declared as image/png'),
    ('iVBOR*0KGgo', 'broken base64'),
])
def test_images_that_are_none(gateway, path, image, words):
    if path == '/v1/messages':
        part = {'type': 'image', 'source': {'type': 'base64', 'media_type': 'image/png', 'data': image}}
    else:
        part = {'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,' + image}}
    body = {'model': gateway.model, 'max_tokens': 5, 'messages': [{'role': 'user', 'content': [part]}]}
    answer, text = post(gateway, path, json.dumps(body))
    assert answer.status == 400
    assert words in message_of(path, text)


@pytest.mark.parametrize('path', PATHS)
@pytest.mark.parametrize('salt, words', [(7, 'a number'), (['secret'], 'an array'), ({'secret': 1}, 'an object'), ('', 'an empty string')])
def test_salts_that_are_none(gateway, path, salt, words):
    body = {'model': gateway.model, 'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'hi'}], 'cache_salt': salt}
    answer, text = post(gateway, path, json.dumps(body))
    assert answer.status == 400
    assert message_of(path, text) == f'cache_salt: must be a non-empty string if given, got {words}'


@pytest.mark.parametrize('path', PATHS)
def test_a_hundred_bad_requests_then_a_good_one(gateway, path):
    for _ in range(100):
        assert post(gateway, path, b'{')[0].status == 400
    body = {'model': gateway.model, 'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'hi'}], 'unknown': {'x': [1]}}
    assert post(gateway, path, json.dumps(body))[0].status == 200


def test_a_thousand_clients_that_leave_at_once(gateway):
    body = json.dumps({'model': gateway.model, 'stream': True, 'messages': [{'role': 'user', 'content': 'word ' * 500}]}).encode()
    head = b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n' % len(body)
    for index in range(1000):
        with socket.create_connection(('127.0.0.1', gateway.port), timeout=60) as connection:
            connection.sendall((head + body)[:None if index % 3 else index])
    wait_idle(gateway)
