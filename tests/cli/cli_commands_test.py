"""Every command's JSON, with a small random model."""
import json
import unittest

from cli_case import DEMO, CliCase, chat_lines, random_model


class Commands(CliCase):
    def setUp(self):
        super().setUp()
        self.use_random_model()

    def add(self, text, *options):
        return self.ok("add", text, *options)["ids"][0]

    def check_ask(self, reply):
        self.fields(reply, answer=str, facts=list, tokens=dict, fallbacks=list, timings_ms=dict, truncated=bool)
        self.fields(reply["tokens"], prompt=int, injected=int, prefilled=int, reused=int, generated=int)
        self.fields(reply["timings_ms"], embed=float, retrieve=float, plan=float, lease=float, compose=float,
                    inject=float, prefill=float, ttft=float, qtft=float, total=float)
        for fact in reply["facts"]:
            self.fields(fact, id=str, state=str, rank=int, text=str)
            self.assertIn(fact["state"], ("injected", "text"))
        for fallback in reply["fallbacks"]:
            self.fields(fallback, reason=str, count=int)
        counts = reply["tokens"]
        self.assertEqual(counts["prompt"], counts["injected"] + counts["prefilled"] + counts["reused"])

    def test_doctor(self):
        reply = self.ok("doctor")
        self.assertIs(reply["ok"], True)
        for check in reply["checks"]:
            self.fields(check, name=str, ok=bool, detail=str)

    def test_import_twice(self):
        arguments = ["import", DEMO / "conversation.jsonl", "--facts", DEMO / "facts.jsonl"]
        first = self.ok(*arguments)
        self.fields(first, turns=int, facts_added=int, facts_existing=int, facts_encoded=int, errors=list,
                    elapsed_ms=float, skipped=int)
        self.assertEqual((first["turns"], first["facts_added"], first["facts_encoded"]), (175, 133, 133))
        self.assertEqual(first["errors"], [])
        second = self.ok(*arguments)
        self.assertEqual((second["turns"], second["facts_added"], second["facts_existing"], second["facts_encoded"]),
                         (0, 0, 133, 0))
        stats = self.ok("stats")
        self.fields(stats, facts=int, facts_pending=int, turns=int, versions=int, vectors=int, records=int, scopes=int,
                    model=str, model_fingerprint=str, encode_context=str, top_j=str, injection=str, kv=dict)
        self.assertEqual((stats["facts"], stats["turns"], stats["facts_pending"]), (133, 175, 0))
        self.assertEqual(stats["injection"], "on")
        for tier in stats["kv"]["tiers"]:
            self.fields(tier, name=str, records=int, bytes=int, dead_bytes=int, budget_bytes=int, hits=int, evictions=int,
                        corrupt=int, torn=int, segments=int, compactions=int, syncs=int, degraded=str)

    def test_facts_of_turns_and_text_output(self):
        chat = self.write("chat.jsonl", chat_lines(3))
        reply = self.run_cli("import", chat)
        self.assertEqual(reply.code, 0, reply.err)
        self.assertIn(b"3 new turns, 3 new facts, 0 known already; 3 encoded", reply.out)
        self.assertEqual(self.facts()[0], ("Mara: Fact number 0.", "2025-01-01T10:00:00Z", ("d0",)))

    def test_reading_and_changing_one_fact(self):
        fact = self.add("Mara lives in Graz", "--time", "2025-01-14T08:00:00+01:00", "--metadata", '{"city":"Graz"}')
        self.add("Teo has a tortoise")
        document = self.ok("get", fact)
        self.fields(document, id=str, version=int, text=str, metadata=dict, event_time=str, ingest_time=str,
                    source_turns=list, scope=dict)
        self.assertEqual(document["metadata"], {"city": "Graz"})
        self.assertEqual(document["event_time"], "2025-01-14T08:00:00+01:00")

        found = self.ok("search", "Graz", "--k", 5, "--filter", '{"city":"Graz"}')
        self.assertEqual([hit["id"] for hit in found["results"]], [fact])
        self.fields(found["results"][0], text=str, score=float, scores=dict, event_time=str, metadata=dict)
        self.fields(found["results"][0]["scores"], vector=float, keyword=float)

        page = self.ok("list", "--limit", 1)
        self.fields(page, facts=list, next_cursor=str)
        rest = self.ok("list", "--limit", 1, "--cursor", page["next_cursor"])
        self.assertEqual([f["text"] for f in page["facts"] + rest["facts"]],
                         ["Mara lives in Graz", "Teo has a tortoise"])

        changed = self.ok("update", fact, "--text", "Mara lives in Ljubljana", "--if-version", 1)
        self.assertEqual((changed["id"], changed["version"]), (fact, 2))
        self.fails(8, "kConflict", "update", fact, "--text", "Mara lives in Oslo", "--if-version", 1)
        history = self.ok("history", fact)["history"]
        self.assertEqual([row["event"] for row in history], ["ADD", "UPDATE"])
        for row in history:
            self.fields(row, version=int, text=str, metadata=dict, event_time=str, valid_from=str, valid_to=str)
        self.assertEqual(history[1]["valid_to"], "")

    def test_delete_gives_a_receipt(self):
        ids = [self.add(f"Fact number {i} of the list") for i in range(3)]
        receipt = self.ok("delete", ids[0])
        self.fields(receipt, facts=int, versions=int, history=int, vectors=int, keywords=int, records=dict,
                    dependants_reencoded=int, verified=bool, turns=int, dependants=int)
        self.fields(receipt["records"], gpu=int, host=int, disk=int)
        self.assertEqual((receipt["facts"], receipt["verified"], receipt["dependants"]), (1, True, 2))
        self.assertEqual(receipt["dependants_reencoded"], 2)
        self.fails(3, "kNotFound", "get", ids[0])
        self.fails(3, "kNotFound", "delete", ids[0])
        self.assertEqual(self.ok("delete", "--all-in-scope", "--yes")["facts"], 2)
        self.assertEqual(self.facts(), [])

    def test_delete_by_filter_counts_first(self):
        self.add("Mara lives in Graz", "--metadata", '{"city":"Graz"}')
        self.add("Teo lives in Graz", "--metadata", '{"city":"Graz"}')
        self.add("Ida lives in Linz", "--metadata", '{"city":"Linz"}')
        command = ["delete", "--filter", '{"city":"Graz"}']
        self.assertIn("--yes", self.fails(2, "kInvalidArgument", *command))
        counted = self.ok(*command, "--dry-run")
        self.assertEqual((counted["facts"], counted["dependants"], counted["dry_run"]), (2, 1, True))
        self.assertEqual(len(self.facts()), 3)
        self.assertIn(b"would erase: 2 facts", self.run_cli(*command, "--dry-run").out)
        receipt = self.ok(*command, "--yes")
        self.fields(receipt, record_entries=int, records_in_use=int, answers_running=int, chats_open=int, dry_run=bool,
                    note=str)
        self.assertEqual((receipt["facts"], receipt["record_entries"], receipt["dependants_reencoded"]), (2, 3, 1))
        self.assertEqual(self.ok(*command, "--yes")["facts"], 0)
        self.fails(2, "kInvalidArgument", "delete", "--filter", "{", "--yes")

    def test_old_versions_can_be_erased(self):
        fact = self.add("Mara lives in Graz")
        self.add("Teo has a tortoise")
        self.ok("update", fact, "--text", "Mara lives in Linz")
        receipt = self.ok("delete", fact, "--old-versions")
        self.assertEqual((receipt["facts"], receipt["history"], receipt["verified"]), (0, 1, True))
        self.assertEqual(len(self.ok("history", fact)["history"]), 1)
        changed = self.ok("update", fact, "--text", "Mara lives in Wels", "--erase-old")
        self.assertEqual((changed["text"], changed["version"]), ("Mara lives in Wels", 3))
        self.assertEqual((changed["erased"]["history"], changed["erased"]["verified"]), (1, True))
        self.assertEqual([row["version"] for row in self.ok("history", fact)["history"]], [3])
        self.assertEqual(self.ok("stats")["facts_pending"], 0)
        self.assertIn(b"read again and found nothing left: yes",
                      self.run_cli("update", fact, "--text", "Mara has moved", "--erase-old").out)

    def test_an_update_does_not_repeat_another_fact(self):
        first = self.add("Mara lives in Graz")
        second = self.add("Mara lives in Linz")
        self.assertIn(first, self.fails(8, "kConflict", "update", second, "--text", "Mara lives in Graz"))

    def test_importing_again_brings_deleted_facts_back(self):
        chat = self.write("chat.jsonl", chat_lines(2))
        self.ok("import", chat)
        self.ok("delete", "--all-in-scope", "--yes")
        self.assertEqual(self.ok("import", chat)["facts_added"], 2)

    def test_stats_show_what_could_not_be_encoded(self):
        words = "x" * 1900  # a token a byte, more or less, with the random model's tokenizer
        fact = self.ok("add", words)
        queue = self.ok("stats")["encode"]
        self.fields(queue, pending=int, waiting=int, given_up=int, next_try=str, last_error=str, failures=list)
        if fact["facts_encoded"] == 0:
            self.assertEqual((queue["given_up"], queue["failures"][0]["id"]), (1, fact["ids"][0]))
            self.assertIn(b"1 given up", self.run_cli("stats").out)

    def test_scopes_do_not_see_each_other(self):
        fact = self.add("Mara lives in Graz", "--scope", "user=mara")
        self.assertEqual(self.ok("search", "Graz", "--scope", "user=teo")["results"], [])
        self.fails(3, "kNotFound", "get", fact, "--scope", "user=teo")
        self.assertEqual(len(self.ok("list", "--scope", "user=mara")["facts"]), 1)

    def test_ask(self):
        for i in range(4):
            self.add(f"Mara's friend number {i} lives in Graz")
        reply = self.ok("ask", "Who lives in Graz?", "--k", 4, "--top-j", 0, "--max-tokens", 8)
        self.check_ask(reply)
        self.assertEqual([fact["state"] for fact in reply["facts"]], ["injected"] * 4)
        self.assertEqual([fact["rank"] for fact in reply["facts"]], [4, 3, 2, 1])
        self.assertGreater(reply["tokens"]["injected"], 0)
        as_text = self.ok("ask", "Who lives in Graz?", "--k", 4, "--top-j", 0, "--max-tokens", 8, "--no-inject")
        self.check_ask(as_text)
        self.assertEqual(as_text["tokens"]["injected"], 0)
        self.assertEqual(as_text["tokens"]["prompt"], reply["tokens"]["prompt"])
        one_as_text = self.ok("ask", "Who lives in Graz?", "--k", 4, "--top-j", 1, "--max-tokens", 8)
        self.assertEqual([fact["state"] for fact in one_as_text["facts"]], ["injected"] * 3 + ["text"])
        self.check_ask(self.ok("ask", "-", "--k", 0, "--max-tokens", 4, stdin="Qui, où?".encode()))

    def test_ask_streams_text(self):
        self.add("Mara lives in Graz")
        question = ["ask", "Where does Mara live?", "--top-j", 0, "--max-tokens", 6]
        reply = self.run_cli(*question)
        self.assertEqual(reply.code, 0, reply.err)
        self.assertIn(b"1 injected", reply.err)
        self.assertIn(b"first token after", reply.err)
        self.assertEqual(self.run_cli(*question, "--quiet").err, b"")

    def test_compare(self):
        for i in range(3):
            self.add(f"Mara's friend number {i} lives in Graz")
        arguments = ["ask", "Who lives in Graz?", "--compare", "--rounds", 2, "--top-j", 0, "--max-tokens", 4]
        reply = self.ok(*arguments)
        self.fields(reply, same_token_ids=bool, greedy_equal=bool, kl_first_token=float, kl_noise_floor=float,
                    rounds=int, arms=dict)
        self.assertIs(reply["same_token_ids"], True)
        self.assertEqual(sorted(reply["arms"]), ["inject", "none", "text"])
        for arm in reply["arms"].values():
            self.check_ask(arm)
        self.assertEqual(reply["arms"]["none"]["facts"], [])
        self.assertEqual(reply["arms"]["text"]["tokens"]["prompt"], reply["arms"]["inject"]["tokens"]["prompt"])
        table = self.run_cli(*arguments).out.decode()
        for word in ("speed-up", "no memory", "injected", "noise floor", "Same token ids in text and injected: yes"):
            self.assertIn(word, table)
        self.fails(2, "kInvalidArgument", *arguments, "--no-inject")

    def test_chat(self):
        self.add("Mara lives in Graz")
        lines = b"Where does Mara live?\n/remember Mara has a banjo\n\nWhat does Mara have?\n/quit\nnot read\n"
        options = ["chat", "--top-j", "0", "--max-tokens", "4"]
        reply = self.run_cli(*options, "--json", stdin=lines)
        self.assertEqual(reply.code, 0, reply.err)
        answers = [json.loads(line) for line in reply.out.decode().splitlines()]
        self.assertEqual(len(answers), 2)
        for answer in answers:
            self.check_ask(answer)
        self.assertGreater(answers[1]["tokens"]["reused"], 0)
        self.assertEqual([fact["text"] for fact in answers[1]["facts"]], ["Mara has a banjo"])
        text = self.run_cli(*options, stdin=b"Where does Mara live?\n/facts\n/help\n/nonsense\n")
        self.assertEqual(text.code, 2)
        self.assertIn(b"Mara lives in Graz", text.err)
        self.assertIn(b"/remember TEXT", text.err)
        self.assertIn(b"no command /nonsense", text.err)

    def test_calibrate(self):
        self.fields(self.ok("calibrate"), top_j=int)

    def test_reencode(self):
        self.ok("add", "Mara lives in Graz")
        self.ok("add", "Mara has a banjo")
        reply = self.ok("reencode", "--context", "names:4")
        self.fields(reply, context=str, encoded=int, failed=int, pending=int, tokens_prefilled=int, interrupted=bool,
                    elapsed_ms=float)
        self.assertEqual((reply["context"], reply["encoded"], reply["pending"]), ("names:4", 2, 0))
        self.assertEqual(self.ok("stats")["encode_context"], "names:4")
        self.assertEqual(self.ok("stats", "--context", "header")["encode_context"], "header")
        self.assertEqual(self.ok("add", "Mara sings")["facts_encoded"], 1)  # the others are not made anew
        self.assertEqual(self.ok("reencode")["encoded"], 0)
        self.assertEqual(self.ok("reencode", "--all")["encoded"], 3)
        reply = self.ok("ask", "Where does Mara live?", "--top-j", 0, "--max-tokens", 2)
        self.assertEqual({fact["state"] for fact in reply["facts"]}, {"injected"})
        self.fails(2, "kInvalidArgument", "reencode", "--context", "names")
        self.assertEqual(self.ok("stats")["encode_context"], "names:4")

    def test_every_encode_context(self):
        for context in ("alone", "primer:2", "names:2", "turns:2", "near:2", "log:2", "chain:2"):
            with self.subTest(context):
                data = self.root / context.replace(":", "")
                for text in ("Mara lives in Graz", "Mara has a banjo"):
                    self.assertEqual(self.ok("add", text, "--context", context, data=data)["facts_encoded"], 1)

    def test_every_codec_and_records_of_another(self):
        question = ["ask", "Where does Mara live?", "--top-j", 0, "--max-tokens", 2]
        sizes = {}
        for codec in ("f16", "bf16", "f32", "q8", "fp8_e4m3", "q4"):
            with self.subTest(codec):
                data = self.root / codec
                self.ok("add", "Mara lives in Graz", "--codec", codec, data=data)
                sizes[codec] = sum(tier["bytes"] for tier in self.ok("stats", data=data)["kv"]["tiers"])
                for serving in (codec, "q8"):  # what is there is used as it is
                    reply = self.ok(*question, "--codec", serving, data=data)
                    self.assertEqual([fact["state"] for fact in reply["facts"]], ["injected"])
        self.assertLess(sizes["q8"], 0.7 * sizes["f16"])  # heads of this model are small: many scales
        self.assertEqual(sizes["q8"], sizes["fp8_e4m3"])
        self.assertLess(sizes["q4"], sizes["q8"])  # the header's record is in q8 all the same
        self.assertEqual(sizes["f16"], sizes["bf16"])
        self.fails(2, "kInvalidArgument", "stats", "--codec", "q7")

    def test_models_of_all_families(self):
        for family in ("qwen2", "qwen3", "granite", "olmo2"):
            with self.subTest(family):
                data, model = self.root / family, random_model(family)
                self.ok("add", "Mara lives in Graz", "--model", model, data=data)
                reply = self.ok("ask", "Where does Mara live?", "--model", model, "--top-j", 0, "--max-tokens", 2, data=data)
                self.assertEqual([fact["state"] for fact in reply["facts"]], ["injected"])

    def test_another_model_serves_as_text_until_encoded_anew(self):
        self.add("Mara lives in Graz")
        self.env["INFERSCALE_MODEL"] = str(random_model("qwen2"))
        question = ["ask", "Where does Mara live?", "--top-j", 0, "--max-tokens", 2]
        reply = self.ok(*question)
        self.assertEqual([fact["state"] for fact in reply["facts"]], ["text"])
        self.assertIn("record_missing", [fallback["reason"] for fallback in reply["fallbacks"]])
        self.assertEqual([fact["state"] for fact in self.ok(*question)["facts"]], ["injected"])


class Bench(CliCase):
    def setUp(self):
        super().setUp()
        self.use_random_model()

    def test_ttft(self):
        out = self.root / "ttft.json"
        report = self.ok("bench", "ttft", "--k", "0,2", "--repeat", 2, "--out", out)
        self.fields(report, machine=str, model=str, command=str, version=str, rows=list, header_tokens=int,
                    question_tokens=int, load_average_before=float)
        self.assertEqual([row["k"] for row in report["rows"]], [0, 2])
        for row in report["rows"]:
            self.fields(row, facts_tokens=int, none_ms=float, text_ms=float, inject_ms=float, text_over_inject=float,
                        inject_over_none=float, parts_ms=dict, inject_p95_ms=float, text_over_inject_ci95=list)
            self.fields(row["parts_ms"], retrieve=float, lease=float, compose=float, state_write=float, prefill=float)
        self.assertEqual(json.loads(out.read_text()), report)
        self.assertFalse(self.data.exists())
        self.assertNotIn("warm_ms", report["rows"][0])
        table = self.run_cli("bench", "ttft", "--k", "1", "--repeat", 1, "--warm").out
        self.assertIn(b"text/inject", table)
        self.assertIn(b"inject/warm", table)
        row = self.ok("bench", "ttft", "--k", "2", "--repeat", 1, "--warm")["rows"][0]
        self.fields(row, warm_ms=float, warm_p95_ms=float, warm_reused_tokens=int, inject_over_warm=float)
        self.assertGreaterEqual(row["warm_reused_tokens"], row["facts_tokens"])
        self.assertIn("0 to 1000", self.fails(2, "kInvalidArgument", "bench", "ttft", "--k", "5,x"))

    def test_encode(self):
        report = self.ok("bench", "encode", "--contexts", "header,window:2", "--facts", 4, "--single", 2)
        self.assertEqual([(row["context"], row["mode"]) for row in report["rows"]],
                         [("header", "single"), ("header", "bulk"), ("window:2", "single"), ("window:2", "bulk")])
        for row in report["rows"]:
            self.fields(row, facts=int, own_tokens_per_fact=float, prefilled_tokens_per_fact=float, ms_per_fact=float,
                        plain_prefill_ms_per_fact=float)
        self.assertGreater(report["rows"][2]["prefilled_over_own"], 2)


if __name__ == "__main__":
    unittest.main()
