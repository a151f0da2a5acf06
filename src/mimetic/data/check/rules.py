"""Every rule of the check: its id, how much it claims, and what it asks (docs/concepts/dataset_checks.md says why)."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.data.check.finding import Claim

DEFECT, RISK, FACT = Claim.DEFECT, Claim.RISK, Claim.FACT


@dataclass(frozen=True)
class Rule:
    """One rule.

    Args:
        claim: what a finding of it usually is.
        title: what it looks for, a short noun phrase.
        impact: what such a finding does to training or to the robot, one sentence.
        threshold: with what it compares, as text for the documentation.
        mends: `mimetic dataset repair --only=ID` can mend it.
    """

    claim: Claim
    title: str
    impact: str
    threshold: str
    mends: bool = False


RULES: dict[str, Rule] = {
    "meta.files": Rule(
        DEFECT,
        "files that every dataset has, each complete",
        "what a missing or cut file held is lost to training",
        "info.json, tasks, stats.json, a table of episodes and data files exist; Parquet files have their footer",
        mends=True,
    ),
    "meta.info": Rule(
        DEFECT, "values of info.json", "without them no column can be interpreted", "all required keys, sane values"
    ),
    "meta.counts": Rule(
        DEFECT,
        "counters of info.json",
        "tools that trust the counters read too much or too little",
        "equal to the table of episodes and to the rows",
        mends=True,
    ),
    "meta.ledger": Rule(
        DEFECT,
        "the table of episodes",
        "tools that look episodes up by position show another episode's footage from there on",
        "episodes 0 to N-1 in order; row ranges join and match the lengths",
        mends=True,
    ),
    "meta.data_file": Rule(
        DEFECT,
        "data file named for each episode",
        "reading only the named file finds too few rows or none",
        "the episode's rows are in that file",
        mends=True,
    ),
    "meta.video_file": Rule(
        DEFECT,
        "video file named for each episode",
        "training stops at the first frame of that episode",
        "exists, is not empty, holds the frames up to the episode's end (half a frame)",
        mends=True,
    ),
    "meta.video_span": Rule(
        DEFECT,
        "declared span of each episode's video",
        "the last frames show nothing, or another episode",
        "to - from = length / fps within 1.5 frames; too long is a RISK",
        mends=True,
    ),
    "meta.video_order": Rule(
        DEFECT,
        "order of the episodes in one video",
        "frames of one episode are shown as another's",
        "spans do not overlap and rise; off the frame grid by 1e-4 s is a RISK",
        mends=True,
    ),
    "meta.orphans": Rule(
        RISK,
        "rows and files that no episode refers to",
        "they cost disk and download, and some tools read them",
        "none",
        mends=True,
    ),
    "data.schema": Rule(
        DEFECT, "columns of the data files", "the feature cannot be read", "declared name, width and kind in every file"
    ),
    "data.index": Rule(
        DEFECT,
        "numbering of the rows",
        "samples are taken from the wrong frames",
        "index = first + frame_index; frame_index = 0 .. length-1; an episode's rows stand together",
        mends=True,
    ),
    "data.task": Rule(
        DEFECT,
        "task of each row",
        "the policy is trained with the wrong instruction, or training stops",
        "every task_index is in the table of tasks, and agrees with the table of episodes",
        mends=True,
    ),
    "data.nonfinite": Rule(DEFECT, "NaN and infinite values", "the loss becomes NaN", "none in any float feature"),
    "data.dead_channel": Rule(
        FACT, "channels that never change", "they carry nothing; usually padding", "range < 1e-9 in the whole dataset"
    ),
    "data.int_state": Rule(
        RISK, "integer state or action", "values were rounded before they were stored", "float dtype"
    ),
    "data.image_shape": Rule(
        DEFECT,
        "size and coding of pictures",
        "training stops at the first frame of another size",
        "as declared, the same in all files of a camera",
    ),
    "time.monotonic": Rule(
        DEFECT, "rising timestamps", "the order of frames is not certain", "strictly rising", mends=True
    ),
    "time.start": Rule(
        DEFECT,
        "first timestamp",
        "frames are looked for at the wrong time in the video",
        "within half a frame of 0",
        mends=True,
    ),
    "time.grid": Rule(
        DEFECT,
        "timestamps on the frame grid",
        "half a frame off, nobody can say which frame is meant",
        "|t - frame / fps|: up to 1e-4 s loads everywhere; from half a frame DEFECT, between RISK",
        mends=True,
    ),
    "time.gap": Rule(RISK, "dropped frames", "the motion jumps where frames are missing", "no step above 1.5 frames"),
    "time.rate": Rule(
        DEFECT,
        "rate of the timestamps",
        "the policy moves too fast or too slowly by this factor",
        "median step within 5 % of 1 / fps",
    ),
    "time.drift": Rule(
        DEFECT,
        "drift of the timestamps",
        "frames of the end are looked for in the wrong place",
        "last timestamp within half a frame",
        mends=True,
    ),
    "time.true_rate": Rule(
        DEFECT,
        "rate by the recorder's measured clock",
        "the policy learns to move faster or slower than was shown, by this factor",
        "median period within 3 % of 1 / fps, 99th percentile below 2 periods",
    ),
    "time.jitter": Rule(
        DEFECT,
        "evenness of the measured clock",
        "steps of different duration are learnt as equal ones",
        "std / mean of the period: above 0.1 RISK; above 0.3, or one period above 3 / fps, DEFECT",
    ),
    "time.skew": Rule(
        RISK,
        "age of the pictures at their rows",
        "the policy learns to act on old pictures",
        "median camera - loop: above 15 ms RISK, above 50 ms DEFECT",
    ),
    "action.semantics": Rule(FACT, "what the action means", "decides which comparisons make sense", "see 2.4"),
    "action.lag": Rule(
        DEFECT,
        "action against state in time",
        "the policy learns to act earlier or later than was shown",
        "within 4 frames of the dataset's lag, unless the curve is flat (factor 1.3)",
    ),
    "action.late": Rule(
        DEFECT,
        "action ahead of the state",
        "the policy learns what happened instead of what was commanded, and trails",
        "lag of the dataset >= 0",
    ),
    "action.unfollowed": Rule(
        DEFECT,
        "state that follows the action",
        "commands and motion have nothing to do with each other",
        "correlation >= 0.3",
    ),
    "action.tracking": Rule(
        RISK,
        "tracking error",
        "the arm was blocked, the gripper slipped, or calibration is wrong",
        "robust z <= 3.5 and 2 % of range",
    ),
    "action.offset": Rule(
        RISK,
        "constant offset between action and state",
        "leader and follower may be calibrated differently",
        "median(action - state) <= 5 % of range at both ends of a channel that correlates above 0.9",
    ),
    "action.saturation": Rule(
        RISK,
        "commands at the end of their range",
        "clipping hides what the operator wanted, and MIN_MAX piles up at +-1",
        "within 1 % of the extremes for 0.2 s or more: 10 % of an episode's frames",
    ),
    "action.shaking": Rule(
        RISK,
        "commands that shake more than the arm",
        "the loss is spent on noise that the arm filters out, and the policy may tremble",
        "roughness of the action at most 2.5 times the state's, told from 0.3 % of range on",
    ),
    "state.frozen": Rule(
        DEFECT,
        "state that stands still under a moving action",
        "the state of these frames was not measured: it repeats an old one",
        "bit-identical for > 0.5 s inside an episode while the action moves > 1 % of range",
    ),
    "state.stuck": Rule(
        DEFECT,
        "a joint whose reading never changes",
        "the policy is blind in this joint",
        "constant in the episode while its command moves > 1 % of range",
    ),
    "state.spike": Rule(
        RISK,
        "values that jump out and back",
        "single wrong readings widen the normalisation and disturb the loss",
        "|x - running median of 7| > max(30 % of range, 6 x typical)",
    ),
    "state.jump": Rule(
        DEFECT,
        "a step of the state that stays",
        "an encoder wrapped or was calibrated anew in the middle of an episode",
        "more than half the range (or half a turn) in one frame, for good",
    ),
    "state.velocity": Rule(
        RISK,
        "velocity above what small servos can do",
        "readings or the rate are wrong",
        "8 rad/s; DEFECT in > 2 % of an episode's frames",
    ),
    "motion.none": Rule(
        DEFECT, "episodes without motion", "the policy learns to do nothing", "< 10 % of the channels move"
    ),
    "motion.idle_head": Rule(
        RISK,
        "standing still at the start",
        "the commonest cause of a policy that does nothing at its start pose",
        "> 40 % of the frames and > 0.75 s, or > 1 s and > 15 %",
    ),
    "motion.idle_tail": Rule(
        RISK,
        "standing still at the end",
        "frames that teach to stay",
        "> 40 % of the frames and > 0.75 s, or > 2 s and > 20 %",
    ),
    "motion.idle_middle": Rule(
        RISK, "hesitation", "pauses are learnt, too", "> 30 % of the frames before the last motion"
    ),
    "motion.pause": Rule(
        RISK,
        "one long stop in the middle of the motion",
        "the policy may stop there for good: what it sees does not say when to go on",
        "1 s in which nothing moves, the gripper included",
    ),
    "motion.zero_chunk": Rule(
        RISK,
        "action chunks in which nothing happens",
        "standing still becomes a valid answer to what the policy sees",
        "> 15 % of the frames (strong: 35 %)",
    ),
    "motion.smoothness": Rule(
        RISK,
        "episodes rougher than the others",
        "look at them; roughness alone harms little",
        "robust z of SAL < -3.5; or of LDLJ < -3.5 and of the share above 2 Hz > 3.5",
    ),
    "motion.short": Rule(
        RISK, "very short episodes", "usually recorded by accident", "< 1 s, < 15 frames, or < 20 % of the median"
    ),
    "motion.length": Rule(
        RISK,
        "unusual length",
        "something else was recorded, or went wrong",
        "robust z of log length > 4, and > 15 % off",
    ),
    "motion.tempo": Rule(
        RISK,
        "uneven durations of one task",
        "the policy learns a mixture of speeds; unsure or failed attempts are often the slow ones",
        "90th percentile of the length at most 1.7 times the 10th, 20 episodes of the task",
    ),
    "motion.end": Rule(
        RISK,
        "unusual last pose",
        "a failed or cut attempt may be among the demonstrations",
        "distance beyond the Tukey fence of its task, at least 10 % of range",
    ),
    "motion.start": Rule(
        RISK,
        "one far start pose",
        "a start that no other episode covers",
        "distance beyond the Tukey fence of its task, at least 20 % of range",
    ),
    "gripper.channel": Rule(FACT, "which channel is the gripper", "", "by name, else by its histogram"),
    "gripper.chatter": Rule(
        RISK,
        "gripper that flutters",
        "the policy learns to open and close at random",
        "reversals in one second: 2, strong 5",
    ),
    "gripper.never_closed": Rule(
        RISK,
        "episodes without a grasp",
        "failed attempts, if the task is to grasp",
        "no cycle, while most episodes of the task have one",
    ),
    "gripper.retries": Rule(
        RISK, "episodes with several grasps", "retries are learnt, too", "3 cycles or more, while the median is below"
    ),
    "consistency.neighbours": Rule(
        RISK,
        "actions unlike those of similar situations",
        "contradicting demonstrations blur the policy",
        "residual to the 16 nearest frames of other episodes: robust z > 3.5 (only with --full)",
    ),
    "variety.amount": Rule(RISK, "number of demonstrations", "fewer than what policies of this kind need", "30 a task"),
    "variety.contexts": Rule(
        RISK,
        "repetitions of each start situation",
        "a situation that is shown once is not learnt",
        "5 episodes in the median cluster of start contexts (recommended: 10)",
    ),
    "variety.duplicates": Rule(
        DEFECT,
        "identical episodes",
        "they count double, also across a train/eval split",
        "action and state equal to 1e-6",
    ),
    "variety.near_duplicates": Rule(
        RISK,
        "nearly identical episodes",
        "they add weight but no information",
        "as close as a copy warped by 3 % with 1 % noise, equal duration within 5 %",
    ),
    "variety.diversity": Rule(
        RISK,
        "demonstrations that are all the same",
        "the policy will not follow a moved object",
        "mean distance of the episodes' mean states >= 5 % of range",
    ),
    "variety.drift": Rule(
        RISK,
        "change over the session",
        "operator or set-up changed between the first and the last episodes",
        "|mean of last quarter - first| / std within > 3, and > 10 % of range",
    ),
    "variety.balance": Rule(RISK, "tasks with few episodes", "rare tasks are hardly learnt", "5 % of the episodes"),
    "variety.failures": Rule(
        RISK,
        "failed demonstrations",
        "the policy learns the wrong goal, too",
        "labels `next.success` at the end, or those of `mimetic demo record`",
    ),
    "task.placeholder": Rule(
        RISK,
        "task strings that say nothing",
        "a policy that follows words cannot learn what they mean",
        "empty, shorter than 3 characters, or a placeholder",
        mends=False,
    ),
    "task.variants": Rule(
        RISK,
        "one task written in several ways",
        "one task is learnt as several, with fewer episodes each",
        "equal but for case, punctuation and spaces",
        mends=True,
    ),
    "task.similar": Rule(
        RISK, "tasks with nearly the same words", "perhaps one task in two wordings", "word overlap > 0.9"
    ),
    "task.long": Rule(RISK, "tasks longer than the policy reads", "the end is cut silently", "the policy's tokens"),
    "task.same_motion": Rule(
        RISK,
        "tasks that are shown by the same motion",
        "nothing in the data tells these instructions apart, so the words will not matter",
        "mean paths of two tasks at most 3 % of range apart, 5 episodes each",
    ),
    "stats.subset": Rule(
        FACT,
        "statistics of the whole set, training on a part",
        "the part is not centred on zero; usually harmless",
        "mean or std differ by more than 10 % of std (told by training)",
    ),
    "stats.present": Rule(
        DEFECT,
        "statistics for each feature",
        "without them the policy cannot be normalised",
        "min, max, mean, std of state and action; the policy's own needs with --policy",
        mends=True,
    ),
    "stats.match": Rule(
        DEFECT,
        "statistics that fit the rows",
        "every value reaches the network, and the motors, in the wrong scale",
        "mean, std, min, max within 1 % of the range, quantiles within 5 %; q01 <= ... <= q99 in order",
        mends=True,
    ),
    "stats.quantile_mean": Rule(
        RISK,
        "quantiles that are means of episodes' quantiles",
        "a policy with quantile normalisation gets inputs far outside -1..1",
        "q99 - q01 >= 80 % of the true spread; DEFECT for a policy with quantiles",
        mends=True,
    ),
    "stats.index": Rule(
        RISK,
        "statistics of the numbering columns",
        "no policy reads them; a merge or a deletion left them stale",
        "min and max as in the rows",
        mends=True,
    ),
    "stats.zero": Rule(
        RISK,
        "channels whose spread is zero in the policy's mode",
        "they are centred and not scaled; the policy cannot use them",
        "std < 1e-8, max = min or q99 = q01",
    ),
    "stats.outlier": Rule(
        RISK,
        "extremes far outside the usual range",
        "one glitch compresses what the policy can express",
        "(max - min) / (q99 - q01) <= 5 for actions under MIN_MAX",
    ),
    "stats.count": Rule(
        RISK,
        "frames that episodes' statistics count",
        "weights of the aggregation are wrong",
        "equal to the length",
        mends=True,
    ),
    "policy.features": Rule(
        DEFECT, "features that the policy reads", "training refuses or fills in", "present, and as wide as expected"
    ),
    "policy.cameras": Rule(
        DEFECT, "cameras that the policy expects", "training refuses, or a camera stays black", "names or number"
    ),
    "policy.width": Rule(DEFECT, "width of state and action", "training refuses", "at most the policy's maximum"),
    "policy.chunk": Rule(
        RISK,
        "episodes shorter than the policy's chunk",
        "most of their action steps are padding",
        "30 % of the episodes; the padded share is printed",
    ),
    "policy.fps": Rule(
        RISK,
        "rate against the checkpoint's",
        "its motions are learnt at another speed",
        "equal to the rate that it was trained at",
    ),
    "policy.resolution": Rule(
        FACT, "camera size against the policy's input", "larger pictures cost decoding and are scaled down", "equal"
    ),
    "policy.checkpoint": Rule(DEFECT, "the checkpoint itself", "it cannot be used as it is", "`mimetic inspect`"),
    "units.inferred": Rule(FACT, "units of state and action", "the format does not declare them", "largest value"),
    "review.assumption": Rule(
        RISK,
        "how many episodes are called unusual",
        "comparisons within a dataset assume that most episodes are fine; here they are not, or the rule is wrong",
        "50 % of the episodes",
    ),
    "review.length": Rule(
        RISK,
        "scores that only measure length",
        "ranking by it would rank by duration",
        "|rank correlation| with length <= 0.7",
    ),
}
