"""Tasks asked of a real cluster: answers come by the same path as everyone's."""

from bramley.bench.eval.runner import Runner
from bramley.bench.eval.tasks import gsm8k, mmlu
from bramley.bench.eval.tasks.contract import Setting
from support.served import Served


async def test_the_letter_is_read_from_the_model_s_own_distribution(served: Served) -> None:
    runner = Runner(served.client, "tiny", 3)
    gap, letters = await runner.letters()
    assert (gap, letters["A"]) == (" ", ord("A"))  # a byte is a token
    items = [
        mmlu.Question(id=f"{n}", question=f"Which {n}?", choices=list("vwxyz"), answer=n % 5)
        for n in range(6)
    ]
    setting = Setting(style="chat", letters=letters, gap=gap)
    records = await runner.run(mmlu.TASK, items, setting)
    assert [record.verdict == "error" for record in records] == [False] * 6
    for item, record in zip(items, records, strict=True):
        asked = mmlu.ask(item, setting)
        answer = await served.completed("tiny", asked.text, max_tokens=1, logprobs=20)
        top = answer.logprobs[0].top
        likeliest = [chr(one) for one in top if chr(one) in "ABCDE"]
        assert record.found == (likeliest[0] if likeliest else "")
        assert record.prompt_tokens == len(asked.text.encode())


async def test_answers_are_the_same_however_many_are_under_way(served: Served) -> None:
    items = [gsm8k.Problem(id=f"{n}", question=f"{n}?", answer="1") for n in range(5)]
    setting = Setting(style="chat", max_tokens=12)
    alone = await Runner(served.client, "tiny", 1).run(gsm8k.TASK, items, setting)
    together = await Runner(served.client, "tiny", 5).run(gsm8k.TASK, items, setting)
    assert alone == together
    assert len({record.answer for record in alone}) > 1
