"""Images in contents: what there is of them. The rules are tested with the items'."""

from __future__ import annotations

from turnwire.v1.content_pb2 import Content, ContentPart, ContentPartList, InputImage, InputText
from turnwire_server.session.image_rules import has_content, image_bytes

IMAGE = ContentPart(input_image=InputImage(image_url="data:image/png;base64,AAAA"))
TEXT = ContentPart(input_text=InputText(text="data:image/png;base64,AAAA"))


def of(*parts):
    return Content(parts=ContentPartList(parts=parts))


def test_an_image_is_content_as_text_is():
    assert has_content(of(IMAGE)) and has_content(of(TEXT)) and has_content(Content(text="x"))
    assert not has_content(of())
    assert not has_content(of(ContentPart(input_text=InputText())))
    assert not has_content(Content(text=""))


def test_only_images_count_as_their_bytes():
    assert image_bytes(of(TEXT, IMAGE, IMAGE)) == 2 * len(IMAGE.input_image.image_url)
    assert image_bytes(Content(text="x" * 100)) == 0
