"""verify and repair: documents, exit codes, damage found and mended."""
import sqlite3
import unittest

from cli_case import CliCase, chat_lines


class Verify(CliCase):
    def setUp(self):
        super().setUp()
        self.use_random_model()
        self.ok("import", self.write("chat.jsonl", chat_lines(5)))

    def tamper(self, sql):
        database = sqlite3.connect(self.data / "catalog.sqlite")
        database.executescript(sql)
        database.close()

    def test_a_sound_directory(self):
        document = self.ok("verify")
        self.fields(document, ok=bool, checks=list, problems=list, counts=dict)
        self.assertEqual((document["ok"], document["problems"]), (True, []))
        for check in document["checks"]:
            self.fields(check, name=str, ok=bool, detail=str, count=int)
            self.assertTrue(check["ok"], check)
        counts = document["counts"]
        self.fields(counts, facts=int, entries=int, records=int, records_read=int, cut_off=int, encode_again=int, foreign_files=int,
                    problems=int)
        self.assertEqual((counts["facts"], counts["cut_off"]), (5, 0))
        self.assertEqual(counts["records_read"], counts["records"])
        self.assertGreaterEqual(counts["records"], 5)
        self.assertEqual(self.ok("verify", "--quick")["counts"]["records_read"], 0)
        plain = self.run_cli("verify")
        self.assertEqual(plain.code, 0)
        self.assertIn(b"everything agrees", plain.out)
        self.assertEqual(self.ok("repair")["actions"], [])

    def test_damage_is_found_and_mended(self):
        self.tamper("UPDATE records SET n_tokens = n_tokens + 1 WHERE fact = 2; UPDATE owners SET live_facts = 9")
        reply = self.run_cli("verify", "--json")
        self.assertEqual(reply.code, 5, reply.err)
        found = reply.json
        self.assertFalse(found["ok"])
        self.assertEqual({p["kind"] for p in found["problems"]}, {"different_record", "keyword_counters"})
        for problem in found["problems"]:
            self.fields(problem, kind=str, what=str, repair=str)
            self.assertNotIn("Fact number", str(problem))
        self.assertIn(b"problems", self.run_cli("verify").out)
        repaired = self.ok("repair")
        self.fields(repaired, ok=bool, actions=list, after=dict)
        self.assertEqual(len(repaired["actions"]), 2, repaired)
        self.assertTrue(repaired["after"]["ok"])
        self.assertEqual(self.ok("repair")["actions"], [])
        self.assertEqual(self.ok("verify")["counts"]["facts"], 5)

    def test_a_truncated_file_of_records_is_named(self):
        segment = max((self.data / "kv").rglob("*.isseg"), key=lambda file: file.stat().st_size)
        with open(segment, "r+b") as file:
            file.truncate(segment.stat().st_size - 100)
        document = self.ok("verify")
        self.assertEqual(document["counts"]["cut_off"], 1)
        self.assertGreaterEqual(document["counts"]["encode_again"], 1)
        self.assertIn("1 ends of files", str(document["checks"]))

    def test_a_secret_without_a_catalog_is_explained(self):
        fresh = self.data.parent / "fresh"
        fresh.mkdir()
        (fresh / "secret").write_bytes(b"s" * 32)
        self.assertIn("vllm/secret", str(self.fails(5, "kDataLoss", "add", "A fact.", data=fresh)))

    def test_a_directory_that_is_not_there_is_not_made(self):
        for command in ("verify", "repair"):
            missing = self.data.parent / "no such directory"
            self.fails(3, "kNotFound", command, data=missing)
            self.assertFalse(missing.exists())

    def test_a_catalog_that_cannot_be_opened(self):
        (self.data / "catalog.sqlite").write_bytes(b"not a database" * 1000)
        reply = self.run_cli("verify", "--json")
        self.assertEqual(reply.code, 5)
        self.assertEqual(reply.json["problems"][0]["kind"], "catalog_unreadable")
        self.fails(5, "kDataLoss", "repair")


if __name__ == "__main__":
    unittest.main()
