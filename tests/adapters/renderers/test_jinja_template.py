from __future__ import annotations

import pytest

from turnwire_server.adapters.renderers.jinja_template import (
    ChatTemplate,
    TemplateRefusal,
    probe,
)

USER = {"role": "user", "content": "hi"}
PLAIN = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"


def test_messages_and_the_generation_prompt_are_rendered():
    template = ChatTemplate(
        "{{ bos_token }}" + PLAIN + "{% if add_generation_prompt %}>{% endif %}", bos="^"
    )
    assert template.render([USER], generate=True) == "^[user:hi]>"
    assert template.render([USER]) == "^[user:hi]"


def test_what_model_templates_use_is_there():
    template = ChatTemplate(
        "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}"
        "{% break %}{% endfor %}{{ strftime_now('%Y') | length }}"
        "{{ messages[0] | tojson(indent=1) | length > 5 }}"
    )
    content = {"role": "user", "content": "<é>"}
    assert template.render([content, USER]) == '{"role": "user", "content": "<é>"}4True'


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('only ' + messages[0].content) }}",
        "{{ messages[7].content.x }}",
        "{% for x in range(1000000000) %}{% endfor %}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_a_template_that_does_what_it_must_not_is_refused_without_quoting(source):
    with pytest.raises(TemplateRefusal) as refused:
        ChatTemplate(source).render([USER])
    assert "hi" not in str(refused.value)


def test_a_source_that_is_no_template_is_refused_by_line():
    with pytest.raises(TemplateRefusal, match="line 2"):
        ChatTemplate("\n{% for %}")
    with pytest.raises(TemplateRefusal, match="longer than"):
        ChatTemplate("x" * 1_000_001)


def test_a_template_that_leaves_out_the_user_cannot_be_used():
    with pytest.raises(TemplateRefusal, match="leaves out what the user says"):
        probe(ChatTemplate("hello"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PLAIN, {"system": True, "later_system": True, "repeated_roles": True, "tools": False}),
        (
            "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
            "{{ raise_exception('first only') }}{% endif %}[{{ m.content }}]{% endfor %}",
            {"system": True, "later_system": False},
        ),
        (
            "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}",
            {"system": False, "later_system": False},
        ),
        (
            "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
            "{{ raise_exception('in turn') }}{% endif %}[{{ m.content }}]{% endfor %}",
            {"repeated_roles": False, "system": False},
        ),
        (
            "{{ tools | tojson if tools else '' }}" + PLAIN + "{% for m in messages %}"
            "{% for c in m.tool_calls or [] %}{{ c.function.name }}"
            "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
            {"tools": False},  # calls stand behind their outputs: not in order
        ),
        (
            "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ m.content }}"
            "{% for c in m.tool_calls or [] %}{{ c.function.name }}"
            "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
            {"tools": True, "dictionary_arguments": True},
        ),
        (
            "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ m.content }}"
            "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}"
            "{% endfor %}{% endfor %}",
            {"tools": True, "dictionary_arguments": False},
        ),
    ],
)
def test_abilities_are_found_out_by_trying(source, expected):
    abilities = probe(ChatTemplate(source))
    assert {name: getattr(abilities, name) for name in expected} == expected
