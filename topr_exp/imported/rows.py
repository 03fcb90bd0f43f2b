"""One completion of a log in the form that is stored, and what is wrong with a row that has no such form."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from topr_exp.config.data import LARGEST_REWARD
from topr_exp.data.problems import as_text
from topr_exp.imported.roles import ColumnNames
from topr_exp.schema import drop_keys
from topr_exp.store.completions import LOGPROB_ABOVE_ZERO, TEXTS
from topr_exp.types import FINISHES, TOPRError

PROMPT_KINDS = ("prompt_tokens", "messages", "prompt", "question")  # the most exact first
COMPLETION_ROLES = ("completion", "tokens", "logprobs", "reward", "finish")
SMALLEST_LOGPROB = -1e30  # below lies what float32 turns into an infinity
LARGEST_TOKEN = 2**31 - 1

Row = dict[str, Any]  # a value by role


# ---- form


def completions_of(values: Row, roles: Mapping[str, str]) -> list[Row]:
    """Split a row into completions: one, or several of a prompt, each role a list of as many values.

    roles: the column of each role, for messages.
    """
    completions = values.get("tokens")
    completion_types: tuple[type, ...] = (list,)  # token ids
    if "completion" in values:
        completions = values["completion"]
        completion_types = (str, list)  # a text, or messages
    if not isinstance(completions, list) or not completions:
        return [values]
    if not all(isinstance(completion, completion_types) for completion in completions):
        return [values]
    count = len(completions)
    lists = {role: values[role] for role in COMPLETION_ROLES if role in values}
    for role, entries in lists.items():
        if not isinstance(entries, list):
            raise ValueError(f"{roles[role]} has one value for {count} completions")
        if len(entries) != count:
            raise ValueError(f"{roles[role]} has {len(entries)} values for {count} completions")
    rows = []
    for index in range(count):
        row = drop_keys(values, *lists)
        for role, entries in lists.items():
            if entries[index] is not None:
                row[role] = entries[index]
        rows.append(row)
    return rows


def as_completion(values: Row, names: ColumnNames) -> Row:
    """Bring a completion into its stored form; ValueError where the values are none."""
    row = normalize_row(values)
    step = row.pop("step", None)
    refuse_tokens_of_turns(row)
    row = render_messages(row)
    check_values(row, names)
    if "reward" in row:
        row["reward"] = float(row["reward"])  # Arrow takes whole numbers of 64 bits alone
    if "logprobs" in row:
        row["logprobs"] = list(map(float, row["logprobs"]))
    if step is not None:
        digest = hashlib.sha256(str(prompt_text(row)).encode()).hexdigest()
        row["problem_id"] = f"step {as_text(step)}, {digest[:16]}"
    return row


def normalize_row(values: Row) -> Row:
    """Bring token ids, messages, ids, golds and flags of a row into one form each; empty prompts and golds are none."""
    row = values | messages_in_texts(values)
    for text_role, ids_role in (("prompt", "prompt_tokens"), ("completion", "tokens")):
        value = row.get(text_role)
        if isinstance(value, dict):
            row[text_role] = [value]
        elif isinstance(value, list) and value and type(value[0]) is int:
            row.setdefault(ids_role, row.pop(text_role))
    for role in ("prompt", "question"):
        if row.get(role) == "":
            del row[role]
    if type(row.get("problem_id")) in (int, float):
        row["problem_id"] = as_text(row["problem_id"])
    gold = row.pop("gold", None)
    is_empty = gold in (None, "") or gold != gold  # NaN, as pandas writes an empty cell
    if not is_empty:
        row["gold"] = as_text(gold)  # lists and objects as JSON
    if isinstance(row.get("reward"), bool):
        row["reward"] = float(row["reward"])
    if isinstance(row.get("finish"), bool):
        row["finish"] = "length" if row["finish"] else "stop"
    return row


def messages_in_texts(row: Row) -> Row:
    """Return a prompt and a completion that are texts, as messages where the text is JSON of these."""
    parsed: Row = {}
    prompt = row.get("prompt")
    completion = row.get("completion")
    if isinstance(prompt, str):
        parsed["prompt"] = parse_messages(prompt)
    if isinstance(completion, str):
        is_plain_prompt = parsed.get("prompt", prompt) is prompt
        if not is_plain_prompt or not prompt:  # beside a plain prompt it was the model that wrote JSON
            parsed["completion"] = parse_messages(completion)
    return parsed


def parse_messages(text: str) -> Any:
    """Return the messages that a text holds as JSON, as in prime-rl's Parquet; any other text itself."""
    if not text.startswith("[{"):
        return text
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError):
        return text
    are_messages = all(isinstance(message, dict) and "role" in message for message in messages)
    return messages if are_messages else text


def refuse_tokens_of_turns(row: Row) -> None:
    """Raise ValueError for token ids beside a completion of several messages: a user's may be among them."""
    answer = row.get("completion")
    if "tokens" in row and isinstance(answer, list) and len(answer) > 1:
        raise ValueError("the completion has several messages, and nothing says which of its tokens are the model's")


def render_messages(row: Row) -> Row:
    """Make the last answer the completion's text, and JSON of the other messages; ValueError where that can't be.

    A row without messages is returned itself.
    """
    prompt = row.get("prompt")
    answer = row.get("completion")
    turns = []
    for value in (prompt, answer):
        if isinstance(value, list):
            turns += value
    messages = [message_of(turn) for turn in turns]
    if not messages:
        return row
    has_reasoning = turns[-1].get("reasoning_content") or turns[-1].get("reasoning")
    if "tokens" not in row and has_reasoning:
        raise ValueError("the last message's reasoning stands apart from its text, and no token ids say how it went on")
    rendered = drop_keys(row, "prompt", "completion")
    if isinstance(answer, str):
        rendered["completion"] = answer
    elif messages[-1]["role"] == "assistant":
        rendered["completion"] = messages.pop()["content"]
    elif "tokens" not in row:
        raise ValueError("the last message is not the assistant's, and there is no completion beside it")
    if isinstance(prompt, str):
        if messages:
            raise ValueError("messages follow a prompt that is text")
        rendered["prompt"] = prompt
    elif messages:
        if messages[-1]["role"] == "assistant" and "prompt_tokens" not in row:
            raise ValueError("the prompt ends with the assistant's message, and no token ids say how it went on")
        rendered["messages"] = json.dumps(messages, ensure_ascii=False)
    return rendered


def message_of(turn: Any) -> dict[str, str]:
    """Return the role and the text of a message; ValueError for tools and for content that is no text."""
    if not isinstance(turn, dict):
        turn = {}
    role = turn.get("role")
    content = turn.get("content")
    if turn.get("tool_calls") or role == "tool":
        raise ValueError("a message calls a tool; completions with tool calls are not trained on")
    texts = [content]
    if isinstance(content, list):
        texts = list(map(text_of_block, content))
    are_texts = all(isinstance(text, str) for text in (role, *texts))
    if not are_texts:
        raise ValueError("a message must have a role and a content that is text")
    return {"role": role, "content": "".join(texts)}


def text_of_block(block: Any) -> Any:
    if isinstance(block, dict):
        return block.get("text")
    return None


# ---- faults


def check_values(row: Row, names: ColumnNames) -> None:
    """Raise ValueError for a row that is no completion."""
    for role in TEXTS:
        value: Any = row.get(role, "")
        if not isinstance(value, str):
            is_nan = value != value
            kind = "NaN, as pandas writes an empty cell" if is_nan else type(value).__name__
            raise ValueError(f"{names.label(role)} must be text; got {kind}")
    if "completion" not in row and "tokens" not in row:
        raise ValueError(f"completion is missing; {names.remedy('completion')}")
    if "problem_id" not in row and prompt_text(row) is None:
        missing = "problem_id is missing, and question and gold are not both there instead, nor a prompt"
        raise ValueError(f"{missing}; {names.remedy('prompt')}")
    if row.get("finish", "stop") not in FINISHES:
        raise ValueError(f"{names.label('finish')} must be one of {', '.join(FINISHES)}; got {row['finish']!r}")
    reward = row.get("reward", 0)
    is_finite = type(reward) in (int, float) and abs(reward) <= LARGEST_REWARD  # false for NaN too
    if not is_finite:
        raise ValueError(f"{names.label('reward')} must be a finite number; got {reward!r:.80}")
    for role in ("prompt_tokens", "tokens"):
        ids = row.get(role, [0])
        is_int_list = isinstance(ids, list) and set(map(type, ids)) == {int}  # false for an empty one
        if not is_int_list or min(ids) < 0 or max(ids) > LARGEST_TOKEN:
            allowed = f"token ids from 0 to {LARGEST_TOKEN}, at least one"
            raise ValueError(f"{names.label(role)} must be {allowed}; got {ids!r:.80}")
    if "logprobs" in row:
        check_logprobs(row, names)


def check_logprobs(row: Row, names: ColumnNames) -> None:
    """Raise ValueError for log-probabilities that are none, or not one for each of the row's tokens."""
    logprobs = row["logprobs"]
    label = names.label("logprobs")
    tokens_label = names.label("tokens")
    if "tokens" not in row:
        raise ValueError(f"{label} without {tokens_label}: nothing says which tokens they belong to")
    are_numbers = isinstance(logprobs, list) and set(map(type, logprobs)) <= {int, float}
    # False for NaN too.
    are_in_range = are_numbers and all(SMALLEST_LOGPROB <= number <= LOGPROB_ABOVE_ZERO for number in logprobs)
    if not are_in_range:
        raise ValueError(f"{label} must be finite numbers of at most 0 (natural logarithms of probabilities)")
    if len(logprobs) != len(row["tokens"]):
        raise ValueError(f"{len(logprobs)} {label} for {len(row['tokens'])} {tokens_label}")


# ---- prompts


def prompt_text(row: Mapping[str, Any]) -> str | None:
    """Return the kind of prompt that a row brings and the prompt, as a text; None: it names a problem of the run's."""
    kind = first_kind(row)
    is_gradable = row.get("gold") is not None or row.get("reward") is not None
    if kind is None or (kind == "question" and not is_gradable):
        return None
    return f"{kind} {row[kind]}"


def first_kind(row: Mapping[str, Any]) -> str | None:
    """Return the most exact kind of prompt that a row holds."""
    for kind in PROMPT_KINDS:
        if row.get(kind) is not None:
            return kind
    return None


def kind_of_prompt(
    where: str, row: Mapping[str, Any], *, problem_ids: Collection[str] | None, is_graded: bool
) -> str | None:
    """Return the kind of prompt that a row brings; None: it answers a problem of the run's.

    problem_ids: of the run; None: unknown. Raises TOPRError for another id, or no gold in a graded row.
    """
    kind = first_kind(row)
    if kind == "question" and row.get("gold") is None and is_graded:
        kind = None  # an id's question, for people to read
    problem_id = row.get("problem_id")
    if problem_ids is None or problem_id in problem_ids:
        return kind
    if kind is None:
        raise TOPRError(
            f"{where} answers problem_id {problem_id!r}, which is not among the training problems "
            "(data.train_problems=null takes all); or give question and gold"
        )
    if row.get("gold") is None and is_graded:
        raise TOPRError(
            f"{where} has no gold to grade it by; data.reward=given trains on the rewards of the log, "
            "data.columns={gold: NAME} names a column of correct answers"
        )
    return kind
