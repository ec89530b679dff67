from .generate import RolloutContext as RolloutContext
from .group_runner import group_violation as group_violation
from .scoring import Scorer as Scorer
from .streams import streams_of as streams_of
from .teacher_check import check_teacher as check_teacher
from .worker import RolloutWorker as RolloutWorker
from .worker import make_generator as make_generator
