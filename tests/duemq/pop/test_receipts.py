"""Receipt handles: the form of Apache's clients, and malformed texts."""

from __future__ import annotations

import pytest

from duemq.pop.receipts import (
    Receipt,
    ReceiptError,
    message_offset_info,
    parse_receipt,
    start_offset_info,
)

RECEIPT = Receipt(17, 1_700_000_000_123, 60_000, 3, "0", "broker-a", 5)
TEXT = "17 1700000000123 60000 3 0 broker-a 5 19"


def test_a_handle_has_the_form_of_apaches_clients() -> None:
    assert RECEIPT.text(19) == TEXT
    assert parse_receipt(TEXT, "broker-a") == RECEIPT
    assert parse_receipt(TEXT.rpartition(" ")[0], "broker-a") == RECEIPT  # without the offset
    assert RECEIPT.visible_ms == 1_700_000_060_123


@pytest.mark.parametrize("queue", [0, 7, 999])
def test_revive_queues_that_exist(queue: int) -> None:
    found = parse_receipt(f"0 1 2 {queue} 0 b 0 0", "b")
    assert found.is_orderly is (queue == 999)


def test_the_longest_number_and_the_longest_handle_are_read() -> None:
    assert parse_receipt(f"{'9' * 18} 1 2 3 0 b 0 0", "b").start_offset == 10**18 - 1
    name = "b" * (1_024 - len("0 1 2 3 0  0 0"))
    assert parse_receipt(f"0 1 2 3 0 {name} 0 0", name).broker_name == name
    with pytest.raises(ReceiptError, match="1025 characters"):
        parse_receipt(f"0 1 2 3 0 {name} 0 00", name)


WRONG = {
    "empty": "",
    "blanks": " " * 7,
    "six parts": "1 2 3 4 0 b",
    "words": "a b c d e f g h",
    "signs": "-1 2 3 4 0 b 0 0",
    "long number": "1 " + "9" * 19 + " 3 4 0 b 0 0",
    "digits of another script": "1 2 ٣ 4 0 b 0 0",
    "revive queue 8": "1 2 3 8 0 b 0 0",
    "another broker": "1 2 3 4 0 c 0 0",
    "long": "1 2 3 4 0 b 0 0" + " " * 1_024,
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_malformed_handles_are_refused(text: str) -> None:
    with pytest.raises(ReceiptError):
        parse_receipt(text, "b")


def test_offset_fields_have_an_entry_per_queue_with_its_flag() -> None:
    topics = ["T", "%RETRY%g_T", "%RETRY%g+T"]
    starts = start_offset_info((topic, n, 10 * n) for n, topic in enumerate(topics))
    assert starts == "0 0 0;1 1 10;2 2 20"
    offsets = message_offset_info((topic, 0, (1, 2, 5)) for topic in topics)
    assert offsets == "0 0 1,2,5;1 0 1,2,5;2 0 1,2,5"
