import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv.errors import InvalidValue
from edgekv.stops import StopFilter


def stream(pieces, stops):
    stop_filter = StopFilter(stops)
    shown = ""
    for piece in pieces:
        shown += stop_filter.add(piece)
    return shown + stop_filter.finish(), stop_filter.stopped


def whole(text, stops):
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)


texts = st.text(alphabet="abé", max_size=12)


@given(st.lists(texts, max_size=8), st.lists(texts.filter(len), max_size=3))
def test_any_cutting_of_a_text_shows_what_stands_before_the_first_stop(pieces, stops):
    assert stream(pieces, stops) == whole("".join(pieces), stops)


@given(st.lists(texts, max_size=8), texts.filter(len))
def test_no_part_of_a_stop_string_is_ever_shown_early(pieces, stop):
    stop_filter = StopFilter([stop])
    shown = ""
    for piece in pieces:
        shown += stop_filter.add(piece)
        assert whole("".join(pieces), [stop])[0].startswith(shown)


def test_a_stop_string_over_three_pieces_ends_the_text():
    assert stream(["Hello <|", "e", "nd|> and more"], ["<|end|>"]) == ("Hello ", True)


@pytest.mark.parametrize("stops", [[""], ["x" * 1025], ["x"] * 17])
def test_unusable_stop_strings_are_refused(stops):
    with pytest.raises(InvalidValue):
        StopFilter(stops)
