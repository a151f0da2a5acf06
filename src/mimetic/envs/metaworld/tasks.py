"""Tasks of Meta-World: in words, and sorted by difficulty.

The words are those of LeRobot's dataset of Meta-World; the difficulties are those of Seo et al., "Masked World Models
for Visual Control" (2022), in the order that LeRobot numbers them in.
"""

from __future__ import annotations

_EASY = {
    "button-press-v3": "Press a button",
    "button-press-topdown-v3": "Press a button from the top",
    "button-press-topdown-wall-v3": "Bypass a wall and press a button from the top",
    "button-press-wall-v3": "Bypass a wall and press a button",
    "coffee-button-v3": "Push a button on the coffee machine",
    "dial-turn-v3": "Rotate a dial 180 degrees",
    "door-close-v3": "Close a door with a revolving joint",
    "door-lock-v3": "Lock the door by rotating the lock clockwise",
    "door-open-v3": "Open a door with a revolving joint",
    "door-unlock-v3": "Unlock the door by rotating the lock counter-clockwise",
    "drawer-close-v3": "Push and close a drawer",
    "drawer-open-v3": "Open a drawer",
    "faucet-close-v3": "Rotate the faucet clockwise",
    "faucet-open-v3": "Rotate the faucet counter-clockwise",
    "handle-press-v3": "Press a handle down",
    "handle-press-side-v3": "Press a handle down sideways",
    "handle-pull-v3": "Pull a handle up",
    "handle-pull-side-v3": "Pull a handle up sideways",
    "lever-pull-v3": "Pull a lever down 90 degrees",
    "plate-slide-v3": "Slide a plate into a cabinet",
    "plate-slide-back-v3": "Get a plate from the cabinet",
    "plate-slide-back-side-v3": "Get a plate from the cabinet sideways",
    "plate-slide-side-v3": "Slide a plate into a cabinet sideways",
    "reach-v3": "Reach a goal position",
    "reach-wall-v3": "Bypass a wall and reach a goal",
    "window-close-v3": "Push and close a window",
    "window-open-v3": "Push and open a window",
    "peg-unplug-side-v3": "Unplug a peg sideways",
}
_MEDIUM = {
    "basketball-v3": "Dunk the basketball into the basket",
    "bin-picking-v3": "Grasp the puck from one bin and place it into another bin",
    "box-close-v3": "Grasp the cover and close the box with it",
    "coffee-pull-v3": "Pull a mug from a coffee machine",
    "coffee-push-v3": "Push a mug under a coffee machine",
    "hammer-v3": "Hammer a screw on the wall",
    "peg-insert-side-v3": "Insert a peg sideways",
    "push-wall-v3": "Bypass a wall and push a puck to a goal",
    "soccer-v3": "Kick a soccer into the goal",
    "sweep-v3": "Sweep a puck off the table",
    "sweep-into-v3": "Sweep a puck into a hole",
}
_HARD = {
    "assembly-v3": "Pick up a nut and place it onto a peg",
    "hand-insert-v3": "Insert the gripper into a hole",
    "pick-out-of-hole-v3": "Pick up a puck from a hole",
    "pick-place-v3": "Pick and place a puck to a goal",
    "push-v3": "Push the puck to a goal",
    "push-back-v3": "Push the puck to a goal",
}
_VERY_HARD = {
    "shelf-place-v3": "Pick and place a puck onto a shelf",
    "disassemble-v3": "Pick a nut out of a peg",
    "stick-pull-v3": "Grasp a stick and pull a box with the stick",
    "stick-push-v3": "Grasp a stick and push a box using the stick",
    "pick-place-wall-v3": "Pick a puck, bypass a wall and place the puck",
}
DIFFICULTIES = {
    "easy": tuple(_EASY),
    "medium": tuple(_MEDIUM),
    "hard": tuple(_HARD),
    "very_hard": tuple(_VERY_HARD),
}
INSTRUCTIONS = _EASY | _MEDIUM | _HARD | _VERY_HARD
