from .run import run_plan as run_plan
from .run_stack import RunStack as RunStack
from .run_stack import stack as stack
