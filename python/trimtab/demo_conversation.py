"""The words of the demo conversation: a coding agent that mends a failing test. Small enough for a model with 8,192 tokens."""
import base64
import io

MAX_TOKENS = 48

SYSTEM = (
    'You are a careful coding agent. You work in a small Python repository through three tools. Read a file before you change it. '
    'Make the smallest change that fixes the problem, keep the style of the file, and never touch the tests. When a tool has '
    'answered, say in one or two plain sentences what you learned and what you will do next. Do not repeat file contents. If a '
    'screenshot is attached, use the text that is visible in it. The repository is a shopping cart service: cart.py holds the '
    'Cart class, prices.py holds the price table, and test_cart.py holds the tests. Amounts are integers in cents. Rounding is always '
    'half up. A discount is given in percent and applies to the whole cart after all items have been added.')

TOOLS = [
    {
        'name': 'read_file',
        'description': 'Read a text file of the repository and return its contents with line numbers.',
        'input_schema': {'type': 'object', 'properties': {'path': {'type': 'string', 'description': 'path below the root'}},
                         'required': ['path']},
    },
    {
        'name': 'edit_file',
        'description': 'Replace one exact piece of text in a file by another. The old text must occur exactly once.',
        'input_schema': {'type': 'object', 'properties': {'path': {'type': 'string'}, 'old': {'type': 'string'},
                                                          'new': {'type': 'string'}},
                         'required': ['path', 'old', 'new']},
    },
    {
        'name': 'run_tests',
        'description': 'Run the test suite and return the last lines of its output.',
        'input_schema': {'type': 'object', 'properties': {}},
    },
]

CART = '''\
  1  from prices import PRICES
  2
  3
  4  class Cart:
  5      """Items by name; the total is in cents."""
  6
  7      def __init__(self):
  8          self.items = {}
  9          self.discount_percent = 0
 10
 11      def add(self, name, count=1):
 12          if name not in PRICES:
 13              raise KeyError(f"unknown item {name!r}")
 14          self.items[name] = self.items.get(name, 0) + count
 15
 16      def set_discount(self, percent):
 17          if not 0 <= percent <= 100:
 18              raise ValueError(f"discount {percent} is not between 0 and 100")
 19          self.discount_percent = percent
 20
 21      def total(self):
 22          cents = sum(PRICES[name] * count for name, count in self.items.items())
 23          return cents - cents * self.discount_percent // 100
'''

SCREEN = [
    'test_cart.py - cart-service - Editor', '',
    '$ python -m pytest -q', 'F..', '', 'FAILED test_cart.py::test_discount_rounds_half_up',
    'assert cart.total() == 1349', 'E   assert 1350 == 1349', '', '1 failed, 2 passed in 0.04s',
]


def screenshot():
    """A 1280x800 PNG of a terminal with the failing test, as bytes."""
    from PIL import Image, ImageDraw, ImageFont
    image = Image.new('RGB', (1280, 800), (250, 250, 250))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=30)
    draw.rectangle((0, 0, 1280, 60), fill=(60, 60, 70))
    for row, line in enumerate(SCREEN):
        draw.text((40, 14 if row == 0 else 70 + 62 * row), line, font=font, fill=(240, 240, 240) if row == 0 else (20, 20, 20))
    out = io.BytesIO()
    image.save(out, 'PNG')
    return out.getvalue()


def user_turns():
    """The user's three turns: a task; a tool's answer; another tool's answer with a screenshot."""
    yield {'role': 'user', 'content': 'The test test_discount_rounds_half_up in test_cart.py fails. Please find out why and fix it.'}
    yield {'role': 'user', 'content': [
        {'type': 'tool_result', 'tool_use_id': 'toolu_demo_1', 'content': CART},
        {'type': 'text', 'text': 'That is cart.py. What is wrong with total()?'}]}
    picture = base64.b64encode(screenshot()).decode()
    yield {'role': 'user', 'content': [
        {'type': 'image', 'source': {'type': 'base64', 'media_type': 'image/png', 'data': picture}},
        {'type': 'text', 'text': 'Here is a screenshot of my terminal after running the tests. Which assertion fails?'}]}


def assistant_turn(number, answer):
    """The assistant's turn as the client sends it back: the model's own words, and after turn 1 the scripted tool call."""
    content = [{'type': 'text', 'text': answer}] if answer else []
    if number == 1:
        content.append({'type': 'tool_use', 'id': 'toolu_demo_1', 'name': 'read_file', 'input': {'path': 'cart.py'}})
    return {'role': 'assistant', 'content': content}


def summary(message):
    """One message in a few lines for the terminal."""
    if isinstance(message['content'], str):
        return message['content']
    lines = []
    for part in message['content']:
        if part['type'] == 'text':
            lines.append(part['text'])
        elif part['type'] == 'image':
            lines.append(f"[a PNG screenshot, {len(part['source']['data']) * 3 // 4} bytes]")
        elif part['type'] == 'tool_result':
            lines.append(f"[tool result: {part['content'].count(chr(10))} lines of cart.py]")
    return '\n'.join(lines)
