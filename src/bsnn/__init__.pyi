from bsnn import data as data, models as models, optim as optim, train as train, zoo as zoo
from bsnn.convert.snntorch import from_snntorch as from_snntorch
from bsnn.convert.spikingjelly import from_spikingjelly as from_spikingjelly
from bsnn.deploy.engine import Engine as Engine, load as load
from bsnn.deploy.export import export as export
from bsnn.errors import BackendWarning as BackendWarning, UserError as UserError
from bsnn.kernels import backend as backend
from bsnn.kernels.precision import precision as precision
from bsnn.nn import surrogate as surrogate
from bsnn.nn.bits import (
    BinaryModule as BinaryModule,
    BinaryParameter as BinaryParameter,
    signs as signs,
    split_parameters as split_parameters,
)
from bsnn.nn.network import (
    Concat as Concat,
    ImageNetwork as ImageNetwork,
    Residual as Residual,
    Sequential as Sequential,
)
from bsnn.nn.neuron import (
    LIF as LIF,
    LIFState as LIFState,
    Neuron as Neuron,
    Stateful as Stateful,
    lif_step as lif_step,
    map_state as map_state,
)
from bsnn.nn.neurons import (
    IF as IF,
    AdaptiveLIF as AdaptiveLIF,
    HardResetLIF as HardResetLIF,
    ParametricLIF as ParametricLIF,
    neuron_named as neuron_named,
)
from bsnn.nn.norm import (
    BatchNorm1d as BatchNorm1d,
    BatchNorm2d as BatchNorm2d,
    estimating_statistics as estimating_statistics,
)
from bsnn.nn.recurrent import Recurrent as Recurrent
from bsnn.nn.retraced import Retraced as Retraced
from bsnn.nn.size import model_size as model_size
from bsnn.nn.synapse import (
    BinaryConv2d as BinaryConv2d,
    BinaryLinear as BinaryLinear,
    TracedConv2d as TracedConv2d,
    TracedLinear as TracedLinear,
)
from bsnn.nn.trace import (
    BPTT as BPTT,
    NDOT as NDOT,
    OTTT as OTTT,
    SLTT as SLTT,
    Activity as Activity,
    GradientRule as GradientRule,
)
from bsnn.online.bptt import bptt_update as bptt_update
from bsnn.online.evaluate import (
    counting_spikes as counting_spikes,
    estimate_statistics as estimate_statistics,
    evaluate as evaluate,
    over_time as over_time,
    predict as predict,
)
from bsnn.online.ledger import assert_memory_constant as assert_memory_constant, predict_memory as predict_memory
from bsnn.online.loss import step_loss as step_loss
from bsnn.online.step_statistics import StepStatistics as StepStatistics
from bsnn.online.stream import Moment as Moment, stream_update as stream_update
from bsnn.online.update import online_update as online_update
from bsnn.paper.recipes import recipe as recipe

__version__: str
